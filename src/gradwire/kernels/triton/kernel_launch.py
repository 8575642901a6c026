"""Launch of a kernel, and allocation of its temporary memory."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["BLOCK", "LaunchCall", "ScratchMemory", "launch", "recorded", "scratch"]

BLOCK = 2048  # elements for one program: 16 for each of its 128 threads, enough loads in flight for full bandwidth

_ALIGNMENT = 16


class LaunchCall(NamedTuple):
    """A launch: the kernel, its grid, and its arguments."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


class ScratchMemory(NamedTuple):
    """Memory that a recorded wrapper asked for: an offset in the allocation made when its launches are started."""

    offset: int
    numel: int
    dtype: torch.dtype

    def inside(self, memory: Tensor) -> Tensor:
        """View this part of uint8 ``memory``."""
        return memory[self.offset : self.offset + self.numel * self.dtype.itemsize].view(self.dtype)


class Recording:
    """The launches that a wrapper would make.

    Attributes:
        steps: launches of the wrapper, in order.
        end: the byte behind the scratch memory that it asked for.
    """

    def __init__(self, start: int) -> None:
        self.steps: list[LaunchCall] = []
        self.end = start

    def reserve(self, numel: int, dtype: torch.dtype) -> ScratchMemory:
        """Reserve memory after the last reservation."""
        place = ScratchMemory(self.end, numel, dtype)
        self.end += -(-numel * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return place


_recording: ContextVar[Recording | None] = ContextVar("_recording", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Launch a kernel on the device of its first argument, a tensor; an empty grid launches nothing.

    The compiler would turn a * b + c into one instruction with one rounding: the references round twice.
    """
    recording = _recording.get()
    if recording is not None:
        recording.steps.append(LaunchCall(kernel, grid, arguments, constants))
    elif 0 not in grid:
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def scratch(numel: int, dtype: torch.dtype, like: Tensor) -> Tensor | ScratchMemory:
    """Allocate memory for the kernels of one call, on the device of ``like``; its values are undefined.

    While launches are recorded nothing is allocated, so a wrapper may only hand it to kernels.
    """
    recording = _recording.get()
    if recording is not None:
        return recording.reserve(numel, dtype)
    return torch.empty(numel, dtype=dtype, device=like.device)


def recorded(wrapper: Callable[..., None], *arguments: Any, start: int = 0) -> Recording:
    """Record the launches of a wrapper without making them.

    Args:
        start: the byte from which on its scratch memory lies; a multiple of 16.
    """
    recording = Recording(start)
    token = _recording.set(recording)
    try:
        wrapper(*arguments)
    finally:
        _recording.reset(token)
    return recording
