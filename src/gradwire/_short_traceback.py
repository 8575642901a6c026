"""Errors of public functions end where users called them, without the frames of what gradwire does inside.

Invariants:
    * Only a ``GradwireError`` is shortened: its message says what was wrong. Any other error, which may be a mistake of
      gradwire's own, keeps every frame.
    * Frames of other packages than gradwire and torch stay, such as those of a user's own compressor that was called
      from inside, and so does the chain of causes.
    * ``GRADWIRE_TRACEBACK=full`` keeps every frame.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from gradwire.errors import GradwireError, require

__all__ = ["VARIABLE", "ShortTracebacks", "check_variable", "short_traceback"]

VARIABLE = "GRADWIRE_TRACEBACK"

HIDDEN = ("gradwire", "torch")
"""Packages of which frames are hidden, below a public function."""

MAKING = ("__init__", "__post_init__")

F = TypeVar("F", bound=Callable[..., Any])


def check_variable(text: str) -> None:
    """Refuse a value of the environment variable that means nothing.

    >>> check_variable("long")
    Traceback (most recent call last):
    gradwire.errors.ConfigError: GRADWIRE_TRACEBACK must be short or full, got 'long'
    """
    require(text in ("", "short", "full"), VARIABLE, "short or full", text)


def short_traceback(function: F) -> F:
    """Let a public function raise every ``GradwireError`` as if its caller had raised it.

    Args:
        function: function, or method of a class.

    Returns:
        Function with the same name, signature and docstring.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except GradwireError as error:
            if os.environ.get(VARIABLE) != "full":
                error.__traceback__ = _foreign(error.__traceback__)
            # Python adds no frame for a ``raise`` without an error, so that this one is hidden, too.
            raise

    return cast("F", call)


class ShortTracebacks:
    """Base of public classes, whose public methods and constructors raise as ``short_traceback`` has it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in list(vars(cls).items()):
            if name in MAKING or not name.startswith("_"):
                if isinstance(value, FunctionType):
                    setattr(cls, name, short_traceback(value))
                elif isinstance(value, classmethod):
                    setattr(cls, name, classmethod(short_traceback(value.__func__)))


def _foreign(traceback: TracebackType | None) -> TracebackType | None:
    """Copy a traceback without the frames of gradwire and torch."""
    kept = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] not in HIDDEN:
            kept.append(traceback)
        traceback = traceback.tb_next
    shown = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown
