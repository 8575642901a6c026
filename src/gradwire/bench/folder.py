"""A folder whose files are a list: models, peers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType

from gradwire.errors import ConfigError, nearest

__all__ = ["load", "names_in"]


def names_in(path: Iterable[str]) -> tuple[str, ...]:
    """The modules of a package that are no machinery.

    Args:
        path: its ``__path__``.

    >>> from gradwire.bench import peers
    >>> names_in(peers.__path__)
    ('mxnet',)
    """
    return tuple(sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_")))


def load(package: str, what: str, name: str, known: Iterable[str]) -> ModuleType:
    """The module of a name.

    Args:
        package: its full name.
        what: a file of it is called.
        name: wanted.
        known: the names there are.

    Raises:
        ConfigError: it is not one of them.
    """
    known = tuple(known)
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}: {nearest(name, known)}")
    return importlib.import_module(f"{package}.{name}")
