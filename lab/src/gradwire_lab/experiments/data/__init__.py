"""Data sets, one in each file.

A file of data that people have on their disks defines ``load(folder)``; ``holds(folder)``, which says whether a folder
looks like it; and ``LOOKS``, how that is in words. The others make or find data by themselves.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError

__all__ = ["load"]


def load(folder: Path, kinds: Sequence[str]) -> Any:
    """Load the data in a folder, whichever data set it holds.

    Args:
        folder: folder that the user named.
        kinds: names of files here.

    Raises:
        ConfigError: no such folder, none of these kinds, or a file that is not what it should be.
    """
    if not folder.is_dir():
        raise ConfigError(f"the data folder {folder} is not there, or is not a folder")
    modules = [importlib.import_module(f"{__name__}.{kind}") for kind in kinds]
    for module in modules:
        if module.holds(folder):
            return module.load(folder)
    known = "; ".join(f"{kind}: {module.LOOKS}" for kind, module in zip(kinds, modules, strict=True))
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise ConfigError(f"the data folder {folder} must hold one of ({known}), found {found}")
