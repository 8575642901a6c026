"""The start of a kernel."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

__all__ = ["BLOCK", "LaunchCall", "launch", "recorded"]

BLOCK = 2048  # elements for one program: 16 for each of its 128 threads, enough loads in flight for full bandwidth


class LaunchCall(NamedTuple):
    """A launch: the kernel, its grid, and what it is given."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


_steps: ContextVar[list[LaunchCall] | None] = ContextVar("_steps", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Start a kernel on the device of its first argument, a tensor; an empty grid is no work.

    The compiler would turn a * b + c into one instruction with one rounding: the references round twice.
    """
    steps = _steps.get()
    if steps is not None:
        steps.append(LaunchCall(kernel, grid, arguments, constants))
    elif 0 not in grid:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def recorded(wrapper: Callable[..., None], *arguments: Any) -> list[LaunchCall]:
    """What a wrapper would launch, which it does not."""
    steps: list[LaunchCall] = []
    token = _steps.set(steps)
    try:
        wrapper(*arguments)
    finally:
        _steps.reset(token)
    return steps
