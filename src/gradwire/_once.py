"""Functions that make their result at the first call, in whichever thread that is."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["once"]

P = ParamSpec("P")

T = TypeVar("T")


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Cache what a function makes, so that all threads get the same object for the same hashable arguments.

    Exchanges run in threads, and two models begin at the same time. ``functools.cache``, and from Python 3.12 on
    ``functools.cached_property``, let two threads make one each at their first calls. Where what is made is registered
    with torch, is known by its address or identity, or is written to by a stream that is not yet done, it must be one.

    >>> @once
    ... def square(x):
    ...     print("made")
    ...     return x * x
    >>> square(3) + square(3)
    made
    18
    """
    cached, lock = functools.cache(make), threading.RLock()

    @functools.wraps(make)
    def same(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    vars(same)["cache_clear"] = cached.cache_clear  # as functools has it, for tests
    return same
