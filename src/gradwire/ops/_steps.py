"""The step of each rank's payload, where a payload brings its own."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, float32

__all__ = ["check_steps", "sizes", "step_rows"]


def check_steps(what: str, steps: Tensor | None, payloads: Tensor) -> None:
    """Raise unless ``steps`` is None or a (W, 1) tensor of float32, one row for each of the W payloads."""
    if steps is not None:
        check_rows(what, steps, torch.float32, payloads, 1)
        require(steps.size(0) == payloads.size(0), what, f"{payloads.size(0)} rows", steps.size(0))


def sizes(payloads: Tensor, threshold: float, scale: float, steps: Tensor | None) -> Tensor:
    """(W, 1): what a code of +1 adds, for each rank."""
    step = float32(float32(scale) * float32(threshold))
    return payloads.new_full((payloads.size(0), 1), step, dtype=torch.float32) if steps is None else steps * step


def step_rows(steps: Tensor | None) -> tuple[int, int]:
    """Address and stride in bytes, as the kernels take them."""
    return (0, 0) if steps is None else (steps.data_ptr(), steps.stride(0) * steps.element_size())
