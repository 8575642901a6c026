"""The start of a kernel."""

from typing import Any

import torch

__all__ = ["BLOCK", "launch"]

BLOCK = 2048  # elements for one program: 16 for each of its 128 threads, enough loads in flight for full bandwidth


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Start a kernel on the device of its first argument, a tensor; an empty grid is no work.

    The compiler would turn a * b + c into one instruction with one rounding: the references round twice.
    """
    if 0 not in grid:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[grid](*arguments, **constants, enable_fp_fusion=False)
