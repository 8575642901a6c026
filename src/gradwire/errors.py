"""Errors, one class for each kind of cause.

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
from numbers import Integral, Real
from typing import Any

__all__ = [
    "ConfigError",
    "GradwireError",
    "GroupError",
    "Verbatim",
    "WireError",
    "as_python",
    "is_float32",
    "is_int",
    "is_number",
    "nearest",
    "require",
]


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
        raise ConfigError(f"{name} must be {allowed}, got {given!r}{_instead(given)}")


class Verbatim(str):
    """A description that ``require`` prints as it is, in place of a value; a plain string would be quoted.

    >>> require(False, "states", "at least one", Verbatim("none"))
    Traceback (most recent call last):
    gradwire.errors.ConfigError: states must be at least one, got none
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _instead(given: object) -> str:
    """Say what to write in place of one of gradwire's classes or a subclass of it."""
    ours = isinstance(given, type) and any(base.__module__.split(".")[0] == "gradwire" for base in given.__mro__)
    return f", a class: write {given.__name__}(...), an object" if isinstance(given, type) and ours else ""


def nearest(name: object, known: Iterable[str]) -> str:
    """The sentence that ends an "unknown name" error: the nearest known name, then all of them."""
    names = sorted(known)
    if not names:
        return "there is none"
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    # Among names that are nearly as close, one that begins like it is meant: 'ratio' by 'rate', and not 'strategy'.
    score = {each: difflib.SequenceMatcher(None, each, str(name)).ratio() for each in close}
    close = [each for each in close if score[each] > max(score.values()) - 0.05]
    close.sort(key=lambda each: each[:1] != str(name)[:1])
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def as_python(value: Any) -> Any:
    """Convert a scalar of numpy to Python's own; anything else is returned unchanged."""
    numpy = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if numpy else value


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number (numpy's too) and not a bool."""
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_float32(value: Any) -> bool:
    """Return whether float32 holds ``value``, a number (numpy's too), without overflow or a zero in its place."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value) and (struct.unpack("<f", struct.pack("<f", value))[0] != 0 or value == 0)
    except OverflowError:
        return False


def is_int(value: Any, low: int, high: float = math.inf, of: int = 1) -> bool:
    """Return whether ``value`` is an integer (numpy's too) in [low, high], a multiple of ``of``, and not a bool."""
    whole = not isinstance(value, bool) and isinstance(value, Integral)
    return whole and low <= int(value) <= high and int(value) % of == 0
