"""What can go wrong, by whose fault.

    GradwireError
    ├── ConfigError (ValueError)   the caller: a parameter, a tensor or a call that cannot work
    ├── WireError                  the peer: bytes that are not what they claim to be
    └── GroupError                 the group: ranks disagree, or one of them did not answer in time

Every message names what was wrong, what was given, and what is allowed.
"""

import difflib
import math
import struct
from collections.abc import Iterable

__all__ = ["ConfigError", "GradwireError", "GroupError", "WireError", "is_float32", "is_int", "nearest", "require"]


class GradwireError(Exception):
    """Base of every error that gradwire raises on purpose."""


class ConfigError(GradwireError, ValueError):
    """The caller asked for something that cannot work."""


class WireError(GradwireError):
    """Bytes that came from outside are truncated, corrupted or not what was agreed."""


class GroupError(GradwireError, RuntimeError):
    """The ranks of a group disagree, or one did not answer before the deadline."""


def require(ok: bool, name: str, allowed: str, given: object) -> None:
    """Raise ``ConfigError`` in the house form unless ``ok``.

    >>> require(False, "TopK.ratio", "in (0, 1]", 1.5)
    Traceback (most recent call last):
    gradwire.errors.ConfigError: TopK.ratio must be in (0, 1], got 1.5
    """
    if not ok:
        raise ConfigError(f"{name} must be {allowed}, got {given!r}")


def nearest(name: object, known: Iterable[str]) -> str:
    """The sentence that ends an "unknown name" error: the nearest known name, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def is_float32(value: object) -> bool:
    """Whether ``value`` is a number that float32 can hold without becoming infinite or vanishing to zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and (struct.unpack("<f", struct.pack("<f", value))[0] != 0 or value == 0)
    except OverflowError:
        return False


def is_int(value: object, low: int, high: float = math.inf) -> bool:
    """Whether ``value`` is an integer (not a bool) in [low, high]."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
