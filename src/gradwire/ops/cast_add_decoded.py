"""The sum of payloads that are floats."""

import torch
from torch import Tensor

from gradwire.ops._checks import CASTS, check_cast, check_rows, check_vector, float32
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["cast_add_decoded"]


def _check(payloads: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("cast_add_decoded.out", out, torch.float32, out)
    check_cast("cast_add_decoded.payloads", payloads)
    check_rows("cast_add_decoded.payloads", payloads, payloads.dtype, out, out.numel())


@operation("cast_add_decoded(Tensor payloads, Tensor(a!) out, float scale) -> ()", _check)
def cast_add_decoded(payloads: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * payloads[w], for every w.

    Args:
        payloads: float16, bfloat16 or float32, (W, n), rows contiguous.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(2)
    >>> cast_add_decoded(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float16), out, 0.5)
    >>> out
    tensor([2., 3.])
    """
    factor = float32(scale)
    for payload in payloads:
        out += payload.float() * factor


@cast_add_decoded.kernel("CPU")
def _cpu(payloads: Tensor, out: Tensor, scale: float) -> None:
    ranks, stride = payloads.size(0), payloads.stride(0) * payloads.element_size()
    to, threads = CASTS.index(payloads.dtype), torch.get_num_threads()
    kernels.cast_add_decoded(payloads.data_ptr(), ranks, stride, out.data_ptr(), scale, to, out.numel(), threads)
