"""2-bit codes of what is beyond a threshold, with a residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector, float32
from gradwire.ops._codes import code_bytes, pack
from gradwire.ops._feedback import compensate
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["strom_encode_feedback"]


def _check(grad: Tensor, residual: Tensor, codes: Tensor, threshold: float, status: Tensor | None = None) -> None:  # noqa: ARG001
    n = grad.numel()
    check_vector("strom_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("strom_encode_feedback.residual", residual, torch.float32, grad, n)
    check_vector("strom_encode_feedback.codes", codes, torch.uint8, grad, code_bytes(n, 2))
    check_status("strom_encode_feedback.status", status, grad)


@operation(
    "strom_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) codes, float threshold,"
    " Tensor(d!)? status=None) -> ()",
    _check,
)
def strom_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: float, status: Tensor | None = None
) -> None:
    """Encode r = residual + grad and keep the rest: r > t: 11, r - t; r < -t: 10, r + t; else 00, r.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        threshold: t > 0, in the unit of grad; rounded to float32. The residual drains by at most t a step.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, codes = torch.zeros(2), torch.empty(4, dtype=torch.uint8)
    >>> strom_encode_feedback(torch.tensor([0.75, 0.5]), residual, codes, 0.5)
    >>> residual.tolist(), bytes(codes.tolist()).hex()
    ([0.25, 0.5], 'c0000000')

    Source: as ``strom_encode``.
    """
    t = float32(threshold)
    x = compensate(grad, residual, status)
    above, below = x > t, x < -t
    pack(torch.where(above, 3, torch.where(below, 2, 0)).to(torch.uint8), 2, codes)
    residual.copy_(torch.where(above, x - t, torch.where(below, x + t, x)))


@strom_encode_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, codes: Tensor, threshold: float, status: Tensor | None = None) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.strom_encode_feedback(*addresses, threshold, flag, grad.numel(), torch.get_num_threads())
