"""A scaled copy, in 16 bits as a rule."""

import torch
from torch import Tensor

from gradwire.ops._checks import CASTS, check_cast, check_vector, float32
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["cast_encode"]


def _check(x: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("cast_encode.x", x, torch.float32, x)
    check_cast("cast_encode.out", out)
    check_vector("cast_encode.out", out, out.dtype, x, x.numel())


@operation("cast_encode(Tensor x, Tensor(a!) out, float scale) -> ()", _check)
def cast_encode(x: Tensor, out: Tensor, scale: float) -> None:
    """Round to the format of ``out``, to nearest even: out = RNE(x * scale).

    Args:
        x: float32, n elements.
        out: float16, bfloat16 or float32, n elements. float16 overflows to infinity from 65520 on.
        scale: factor before rounding, rounded to float32 itself; 1 is exact.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.empty(2, dtype=torch.bfloat16)
    >>> cast_encode(torch.tensor([1.0, 3.0]), out, 0.5)
    >>> out
    tensor([0.5000, 1.5000], dtype=torch.bfloat16)
    """
    out.copy_(x * float32(scale))


@cast_encode.kernel("CPU")
def _cpu(x: Tensor, out: Tensor, scale: float) -> None:
    to = CASTS.index(out.dtype)
    kernels.cast_encode(x.data_ptr(), out.data_ptr(), scale, to, x.numel(), torch.get_num_threads())
