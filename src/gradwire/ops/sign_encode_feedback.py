"""The signs of a gradient with its residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._signs import pack_signs, sign_bytes
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sign_encode_feedback"]


def _check(grad: Tensor, residual: Tensor, codes: Tensor, status: Tensor | None = None) -> None:
    n = grad.numel()
    check_vector("sign_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("sign_encode_feedback.residual", residual, torch.float32, grad, n)
    check_vector("sign_encode_feedback.codes", codes, torch.uint8, grad, sign_bytes(n))
    check_status("sign_encode_feedback.status", status, grad)


@operation(
    "sign_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) codes, Tensor(d!)? status=None) -> ()",
    _check,
)
def sign_encode_feedback(grad: Tensor, residual: Tensor, codes: Tensor, status: Tensor | None = None) -> None:
    """Encode x = residual + grad as ``sign_encode`` does and keep the rest: x >= 0: x - 1; else x + 1.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements. It ends near 1 whatever the gradients are: smaller ones drown in it.
        codes: uint8, ceil(n / 8) bytes.
        status: int32, 1 element, or None: bit 0 is set where x is not finite. Copying ``grad`` back to ``residual``
            then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, codes = torch.zeros(2), torch.empty(1, dtype=torch.uint8)
    >>> sign_encode_feedback(torch.tensor([0.75, -0.25]), residual, codes)
    >>> residual, codes.item()
    (tensor([-0.2500,  0.7500]), 1)

    Source: as ``sign_encode``.
    """
    x = compensate(grad, residual, status)
    pack_signs(x >= 0, codes)
    residual.copy_(torch.where(x >= 0, x - 1, x + 1))


@sign_encode_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, codes: Tensor, status: Tensor | None = None) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.sign_encode_feedback(*addresses, flag, grad.numel(), torch.get_num_threads())
