"""Other implementations, measured beside ours on the same arrays in the same run.

The folder is the list: ``gradwire/bench/peers/<name>.py`` defines ``rows(sizes, repeats, directory)``, which checks
that both give the same bits and yields the rows of a benchmark, and ``row_count(sizes)``.
"""

import importlib
import pkgutil
from types import ModuleType

from gradwire.errors import ConfigError, nearest

__all__ = ["find", "names"]


def names() -> tuple[str, ...]:
    """The peers there are.

    >>> "mxnet" in names()
    True
    """
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def find(name: str) -> ModuleType:
    """The module of a peer.

    Raises:
        ConfigError: no such file.
    """
    if name not in names():
        raise ConfigError(f"unknown peer {name!r}: {nearest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")
