"""Start of ``python -m gradwire``, which imports the package, and so torch, before its ``__main__``: Ctrl-C meanwhile
prints one line.
"""

from __future__ import annotations

import sys

__all__ = ["by_name"]


def by_name() -> bool:
    """Return whether this program was started as ``python -m gradwire``, and has not reached its ``__main__`` yet."""
    given = sys.orig_argv
    return sys.argv[:1] == ["-m"] and "-m" in given and given[given.index("-m") + 1 :][:1] == ["gradwire"]


if by_name():
    from gradwire_command import end_on_interrupt

    end_on_interrupt()
