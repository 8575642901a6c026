"""Other implementations, measured beside ours on the same arrays in the same run.

The folder is the list: ``gradwire_lab/bench/peers/<name>.py`` defines ``rows(sizes, repeats, directory)``, which checks
that both give the same result and yields the rows of a benchmark, and ``row_count(sizes)``.
"""

from types import ModuleType

from gradwire.registry import names_in
from gradwire_lab.folders import load

__all__ = ["find", "names"]


def names() -> tuple[str, ...]:
    """The names of all peers.

    >>> "mxnet" in names()
    True
    """
    return names_in(__path__)


def find(name: str) -> ModuleType:
    """Import the module of a peer.

    Raises:
        ConfigError: no such file.
    """
    return load(__name__, "peer", name, names())
