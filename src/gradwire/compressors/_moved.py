"""Names of modules that are somewhere else now."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["Moved"]

_FOLDER = Path(__file__).parent


class Moved(MetaPathFinder, Loader):
    """Lead ``gradwire.compressors.NAME`` to the folder of its family, until version 0.2."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if parent != __package__ or name in ("ops", "triton"):
            return None
        families = [file.parent.name for file in _FOLDER.glob(f"*/{name}.py")]
        return ModuleSpec(fullname, self, origin=f"{parent}.{families[0]}.{name}") if families else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        warnings.warn(f"{spec.name} is {spec.origin} now", DeprecationWarning, stacklevel=2)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just named it anew.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
