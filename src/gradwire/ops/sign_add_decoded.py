"""The sum of signs."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._signs import sign_bytes, unpack_signs
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sign_add_decoded"]


def _check(codes: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("sign_add_decoded.out", out, torch.float32, out)
    check_rows("sign_add_decoded.codes", codes, torch.uint8, out, sign_bytes(out.numel()))


@operation("sign_add_decoded(Tensor codes, Tensor(a!) out, float scale) -> ()", _check)
def sign_add_decoded(codes: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale, 0: -scale).

    Args:
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``sign_encode`` writes them; bits beyond n are ignored.
        out: float32, n elements.
        scale: the step, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> sign_add_decoded(torch.tensor([[0b1001]], dtype=torch.uint8), out, 1.0)
    >>> out
    tensor([ 1., -1., -1.,  1.])

    Source: as ``sign_encode``.
    """
    step = float32(scale)
    values = torch.tensor([-step, step], dtype=torch.float32, device=out.device)
    for row in codes:
        out += values[unpack_signs(row, out.numel()).int()]


@sign_add_decoded.kernel("CPU")
def _cpu(codes: Tensor, out: Tensor, scale: float) -> None:
    ranks, stride, threads = codes.size(0), codes.stride(0), torch.get_num_threads()
    kernels.sign_add_decoded(codes.data_ptr(), ranks, stride, out.data_ptr(), scale, out.numel(), threads)
