"""Names of modules that are somewhere else now."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Moved", "in_folders"]


class Moved(MetaPathFinder, Loader):
    """Lead ``PACKAGE.NAME`` to where that module is now, until version 0.2.

    Args:
        package: in which the module was.
        find: called with the module's name in it; gives the full name of where it is, None where it never was there.
    """

    def __init__(self, package: str, find: Callable[[str], str | None]) -> None:
        self._package, self._find = package, find

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{self._package}."):
            return None
        name, dot, inside = fullname.removeprefix(f"{self._package}.").partition(".")
        place = self._find(name)
        return None if place is None else ModuleSpec(fullname, self, origin=f"{place}{dot}{inside}")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        warnings.warn(f"{spec.name} is {spec.origin} now", DeprecationWarning, stacklevel=2)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just named it anew.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def in_folders(package: str, path: str) -> Callable[[str], str | None]:
    """What finds a module in the folders of a package's folder: a method in that of its family.

    Args:
        package: its name.
        path: its folder.
    """

    def find(name: str) -> str | None:
        folders = [file.parent.name for file in Path(path).glob(f"*/{name}.py") if name not in ("ops", "triton")]
        return f"{package}.{folders[0]}.{name}" if folders else None

    return find
