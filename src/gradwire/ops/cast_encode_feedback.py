"""A cast of a gradient and what was not sent before; the residual keeps what rounding took."""

import torch
from torch import Tensor

from gradwire.ops._checks import CASTS, check_cast, check_status, check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["cast_encode_feedback"]


def _check(grad: Tensor, residual: Tensor, out: Tensor, status: Tensor | None = None) -> None:
    check_vector("cast_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("cast_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_cast("cast_encode_feedback.out", out)
    check_vector("cast_encode_feedback.out", out, out.dtype, grad, grad.numel())
    check_status("cast_encode_feedback.status", status, grad)


@operation(
    "cast_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) out, Tensor(d!)? status=None) -> ()", _check
)
def cast_encode_feedback(grad: Tensor, residual: Tensor, out: Tensor, status: Tensor | None = None) -> None:
    """Round x = residual + grad to the format of ``out``, to nearest even, and keep the rest: residual = x - out.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        out: float16, bfloat16 or float32, n elements.
        status: int32 of one element, or None. Its bit 0 is set where an element of x or of its code is not finite;
            nothing clears it here.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> grad, residual = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.001953125])
    >>> out = torch.empty(2, dtype=torch.bfloat16)
    >>> cast_encode_feedback(grad, residual, out)
    >>> out.tolist(), residual.tolist()
    ([1.0, 3.0], [0.0, 0.001953125])
    """
    x = residual + grad
    out.copy_(x)
    if status is not None:
        grad.copy_(residual)
    torch.sub(x, out.float(), out=residual)
    if status is not None:
        status |= ~torch.isfinite(residual).all()


@cast_encode_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, out: Tensor, status: Tensor | None = None) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), out.data_ptr()
    to, flag = CASTS.index(out.dtype), 0 if status is None else status.data_ptr()
    kernels.cast_encode_feedback(*addresses, to, flag, grad.numel(), torch.get_num_threads())
