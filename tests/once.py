"""One run of the ranks for many tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P, T = ParamSpec("P"), TypeVar("T")


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Call a function once for each set of arguments. What it raised is raised again to everybody who asks later:
    ``functools.cache`` would let every test repeat, and wait for, what has failed in the first.

    >>> calls = []
    >>> @once
    ... def fails(number):
    ...     calls.append(number)
    ...     return 1 // number
    >>> for _ in range(2):
    ...     try:
    ...         fails(0)
    ...     except ZeroDivisionError:
    ...         print(calls)
    [0]
    [0]
    """

    @functools.cache
    def outcome(*args: Any, **kwargs: Any) -> tuple[T | None, Exception | None]:
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            return None, error

    @functools.wraps(function)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        result, error = outcome(*args, **kwargs)
        if error is not None:
            raise error
        return cast("T", result)

    return again
