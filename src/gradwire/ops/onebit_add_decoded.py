"""The sum of 1-bit payloads."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["onebit_add_decoded"]


def _check(codes: Tensor, out: Tensor, scale: float, steps: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("onebit_add_decoded.out", out, torch.float32, out)
    check_rows("onebit_add_decoded.codes", codes, torch.uint8, out, code_bytes(out.numel(), 1))
    if steps is not None:
        check_rows("onebit_add_decoded.steps", steps, torch.float32, out, 1)
        require(steps.size(0) == codes.size(0), "onebit_add_decoded.steps", f"{codes.size(0)} rows", steps.size(0))


@operation("onebit_add_decoded(Tensor codes, Tensor(a!) out, float scale, Tensor? steps=None) -> ()", _check)
def onebit_add_decoded(codes: Tensor, out: Tensor, scale: float, steps: Tensor | None = None) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * step, 0: -(scale * step)).

    Args:
        codes: uint8, (W, 4 * ceil(n / 32)), rows contiguous, as ``onebit_encode`` writes them. The bits beyond element
            n are not decoded: they would mean -scale * step.
        out: float32, n elements.
        scale: rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), the step of each rank; None: 1.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> onebit_add_decoded(torch.tensor([[0x90, 0, 0, 0]], dtype=torch.uint8), out, 1.0)
    >>> out
    tensor([ 1., -1., -1.,  1.])

    Source: as ``onebit_encode``.
    """
    if steps is None:
        steps = torch.ones(codes.size(0), 1, device=out.device)
    for row, step in zip(codes, steps * float32(scale), strict=True):
        out += torch.where(unpack(row, 1, out.numel()).bool(), step, -step)


@onebit_add_decoded.kernel("CPU")
def _cpu(codes: Tensor, out: Tensor, scale: float, steps: Tensor | None = None) -> None:
    code_rows = codes.data_ptr(), codes.size(0), codes.stride(0)
    step_rows = (0, 0) if steps is None else (steps.data_ptr(), steps.stride(0) * steps.element_size())
    kernels.onebit_add_decoded(*code_rows, *step_rows, out.data_ptr(), scale, out.numel(), torch.get_num_threads())
