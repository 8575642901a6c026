"""Folders that are lists: a module of one is found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from gradwire.errors import ConfigError, nearest

__all__ = ["load"]


def load(package: str, what: str, name: str, known: Iterable[str]) -> ModuleType:
    """Import the module of a name, from a folder that is a list.

    Args:
        package: full name of the folder's package.
        what: a file of it is called.
        name: wanted.
        known: the names there are.

    Raises:
        ConfigError: the name is not one of them.
    """
    known = tuple(known)
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}: {nearest(name, known)}")
    return importlib.import_module(f"{package}.{name}")
