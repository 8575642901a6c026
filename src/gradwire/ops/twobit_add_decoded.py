"""The sum of 2-bit payloads."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops._steps import check_steps, sizes, step_rows
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["twobit_add_decoded"]


def _check(codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("twobit_add_decoded.out", out, torch.float32, out)
    check_rows("twobit_add_decoded.codes", codes, torch.uint8, out, code_bytes(out.numel(), 2))
    check_steps("twobit_add_decoded.steps", steps, codes)


@operation(
    "twobit_add_decoded(Tensor codes, Tensor(a!) out, float threshold, float scale, Tensor? steps=None) -> ()", _check
)
def twobit_add_decoded(codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (11: s, 10: -s, 00 and 01: 0), s = scale * threshold.

    Args:
        codes: uint8, (W, 4 * ceil(n / 16)), rows contiguous, as ``twobit_encode`` writes them.
        out: float32, n elements.
        threshold: that of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), a factor of the threshold for each rank; None: 1.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> twobit_add_decoded(torch.tensor([[0xE3, 0, 0, 0]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out
    tensor([ 0.5000, -0.5000,  0.0000,  0.5000])

    Source: as ``twobit_encode``.
    """
    for row, step in zip(codes, sizes(codes, threshold, scale, steps), strict=True):
        code = unpack(row, 2, out.numel())
        out += torch.where(code == 3, step, torch.where(code == 2, -step, 0.0))


@twobit_add_decoded.kernel("CPU")
def _cpu(codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:
    rows = codes.data_ptr(), codes.size(0), codes.stride(0), *step_rows(steps)
    kernels.twobit_add_decoded(*rows, out.data_ptr(), threshold, scale, out.numel(), torch.get_num_threads())
