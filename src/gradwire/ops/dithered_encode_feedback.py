"""2-bit codes of what reaches a level that differs a little between elements, with a residual, in one pass."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._codes import code_bytes, pack
from gradwire.ops._dither import fires
from gradwire.ops._feedback import compensate
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["dithered_encode_feedback"]


def _check(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: Tensor, level: Tensor, status: Tensor | None = None
) -> None:
    n = grad.numel()
    check_vector("dithered_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("dithered_encode_feedback.residual", residual, torch.float32, grad, n)
    check_vector("dithered_encode_feedback.codes", codes, torch.uint8, grad, code_bytes(n, 2))
    check_vector("dithered_encode_feedback.threshold", threshold, torch.float32, grad, 1)
    check_vector("dithered_encode_feedback.level", level, torch.float32, grad, 1)
    check_status("dithered_encode_feedback.status", status, grad)


@operation(
    "dithered_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) codes, Tensor threshold,"
    " Tensor level, Tensor(d!)? status=None) -> ()",
    _check,
)
def dithered_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: Tensor, level: Tensor, status: Tensor | None = None
) -> None:
    """Encode r = residual + grad and keep the rest: r_i >= d_i l: 11, r - t; r_i <= -d_i l: 10, r + t; else 00, r.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        threshold: float32, 1 element, t > 0: what is sent.
        level: float32, 1 element, l > 0: the least that fires, times the dither d of ``dithered_encode``. From t / 2
            on, what is sent never makes the residual larger.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, codes, one = torch.zeros(2), torch.empty(4, dtype=torch.uint8), torch.ones(1)
    >>> dithered_encode_feedback(torch.tensor([1.5, 1.5]), residual, codes, threshold=one, level=one)
    >>> residual.tolist(), f"{codes[0].item():08b}"
    ([0.5, 1.5], '11000000')
    """
    x = compensate(grad, residual, status)
    above, below = fires(x, level)
    pack(torch.where(above, 3, torch.where(below, 2, 0)).to(torch.uint8), 2, codes)
    residual.copy_(torch.where(above, x - threshold, torch.where(below, x + threshold, x)))


@dithered_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: Tensor, level: Tensor, status: Tensor | None = None
) -> None:
    addresses = [tensor.data_ptr() for tensor in (grad, residual, codes, threshold, level)]
    flag = 0 if status is None else status.data_ptr()
    kernels.dithered_encode_feedback(*addresses, flag, grad.numel(), torch.get_num_threads())
