"""The sum of 2-bit payloads."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["twobit_add_decoded"]


def _check(codes: Tensor, out: Tensor, threshold: float, scale: float) -> None:  # noqa: ARG001
    check_vector("twobit_add_decoded.out", out, torch.float32, out)
    check_rows("twobit_add_decoded.codes", codes, torch.uint8, out, code_bytes(out.numel(), 2))


@operation("twobit_add_decoded(Tensor codes, Tensor(a!) out, float threshold, float scale) -> ()", _check)
def twobit_add_decoded(codes: Tensor, out: Tensor, threshold: float, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (11: s, 10: -s, 00 and 01: 0), s = scale * threshold.

    Args:
        codes: uint8, (W, 4 * ceil(n / 16)), rows contiguous, as ``twobit_encode`` writes them.
        out: float32, n elements.
        threshold: that of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> twobit_add_decoded(torch.tensor([[0xE3, 0, 0, 0]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out
    tensor([ 0.5000, -0.5000,  0.0000,  0.5000])

    Source: as ``twobit_encode``.
    """
    step = float32(float32(scale) * float32(threshold))
    for row in codes:
        code = unpack(row, 2, out.numel())
        out += torch.where(code == 3, step, torch.where(code == 2, -step, 0.0))


@twobit_add_decoded.kernel("CPU")
def _cpu(codes: Tensor, out: Tensor, threshold: float, scale: float) -> None:
    ranks, stride, threads = codes.size(0), codes.stride(0), torch.get_num_threads()
    kernels.twobit_add_decoded(codes.data_ptr(), ranks, stride, out.data_ptr(), threshold, scale, out.numel(), threads)
