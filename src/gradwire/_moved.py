"""Names of modules that have moved."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["Moved", "as_attributes", "in_folders", "lead"]


class Moved(MetaPathFinder, Loader):
    """A finder that leads ``PACKAGE.NAME`` to the module's new place, until version 0.2.

    Args:
        package: full name of the package in which the module was.
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

    def get_code(self, fullname: str) -> CodeType | None:
        """Load the code of the module at its new place, for ``python -m``."""
        old = self.find_spec(fullname, None)
        spec = importlib.util.find_spec(str(old.origin)) if old is not None else None
        # The method is looked up as runpy does it: an editable installation has loaders of no known class.
        ask: Callable[[str], CodeType | None] | None = getattr(spec and spec.loader, "get_code", None)
        return None if spec is None or ask is None else ask(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just named it anew.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def as_attributes(package: str, find: Callable[[str], str | None]) -> Callable[[str], ModuleType]:
    """A function that leads ``PACKAGE.NAME``, written after ``import PACKAGE`` alone, to the module's new place.

    Args:
        package: full name of the package that gets the function as its ``__getattr__``.
        find: function that finds the module's new place, with the argument and the result of ``Moved.find``.
    """

    def attribute(name: str) -> ModuleType:
        if name.startswith("_") or find(name) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return attribute


def lead(package: str, places: Mapping[str, str]) -> None:
    """Let ``import PACKAGE.NAME`` find modules at their new places.

    Args:
        package: full name of the package in which the modules were.
        places: new name of each in the package, by its former one.
    """
    # The last of all: it is asked for names that are nowhere.
    sys.meta_path.append(Moved(package, {name: f"{package}.{place}" for name, place in places.items()}.get))


def in_folders(package: str, path: str) -> Callable[[str], str | None]:
    """A function that finds a module in the folders inside a package's folder, as a method in that of its family.

    Args:
        package: full name of the package.
        path: path of the package's folder.
    """

    def find(name: str) -> str | None:
        if not name.isidentifier() or name in ("ops", "triton"):
            return None
        folders = [file.parent.name for file in Path(path).glob(f"*/{name}.py")]
        return f"{package}.{folders[0]}.{name}" if folders else None

    return find
