"""The start of a kernel, and the memory that it needs for itself."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire.ops.base import Op

__all__ = ["BLOCK", "LaunchCall", "Recording", "ScratchMemory", "by_reference", "launch", "recorded", "scratch"]

BLOCK = 2048  # elements for one program: 16 for each of its 128 threads, enough loads in flight for full bandwidth

_ALIGNMENT = 16


class LaunchCall(NamedTuple):
    """A launch: the kernel, its grid, and what it is given."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


class ScratchMemory(NamedTuple):
    """Memory that a recorded wrapper asked for: a place in what is allocated when its launches are started."""

    offset: int
    numel: int
    dtype: torch.dtype

    def inside(self, memory: Tensor) -> Tensor:
        """This part of uint8 ``memory``."""
        return memory[self.offset : self.offset + self.numel * self.dtype.itemsize].view(self.dtype)


class Recording:
    """What a wrapper would launch.

    Attributes:
        steps: its launches, in order.
        end: the byte behind the scratch memory that it asked for.
    """

    def __init__(self, start: int) -> None:
        self.steps: list[LaunchCall] = []
        self.end = start

    def reserve(self, numel: int, dtype: torch.dtype) -> ScratchMemory:
        """A place behind what was asked for so far."""
        place = ScratchMemory(self.end, numel, dtype)
        self.end += -(-numel * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return place


_recording: ContextVar[Recording | None] = ContextVar("_recording", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Start a kernel on the device of its first argument, a tensor; an empty grid is no work.

    The compiler would turn a * b + c into one instruction with one rounding: the references round twice.
    """
    recording = _recording.get()
    if recording is not None:
        recording.steps.append(LaunchCall(kernel, grid, arguments, constants))
    elif 0 not in grid:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)


def by_reference(operation: Op[Any], *arguments: Any) -> None:
    """Run the reference of an operation, for arguments that no kernel serves.

    Raises:
        ValueError: launches are recorded; what torch does is none, and would be done while it is only recorded.
    """
    if _recording.get() is not None:
        raise ValueError(f"{operation.name} has no kernel for these arguments")
    operation.reference(*arguments)


def scratch(numel: int, dtype: torch.dtype, beside: Tensor) -> Tensor | ScratchMemory:
    """Memory for the kernels of one call, on the device of ``beside``; what it holds is not defined.

    While launches are recorded nothing is allocated, so a wrapper may only hand it to kernels.
    """
    recording = _recording.get()
    if recording is not None:
        return recording.reserve(numel, dtype)
    return torch.empty(numel, dtype=dtype, device=beside.device)


def recorded(wrapper: Callable[..., None], *arguments: Any, start: int = 0) -> Recording:
    """What a wrapper would launch, which it does not.

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
