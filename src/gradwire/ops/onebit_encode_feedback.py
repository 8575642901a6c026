"""1-bit codes of a gradient with its residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._codes import code_bytes, pack, threshold_of
from gradwire.ops._feedback import compensate
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["onebit_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    codes: Tensor,
    threshold: float,  # noqa: ARG001
    status: Tensor | None = None,
    step: Tensor | None = None,
) -> None:
    n = grad.numel()
    check_vector("onebit_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("onebit_encode_feedback.residual", residual, torch.float32, grad, n)
    check_vector("onebit_encode_feedback.codes", codes, torch.uint8, grad, code_bytes(n, 1))
    check_status("onebit_encode_feedback.status", status, grad)
    if step is not None:
        check_vector("onebit_encode_feedback.step", step, torch.float32, grad, 1)


@operation(
    "onebit_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) codes, float threshold,"
    " Tensor(d!)? status=None, Tensor? step=None) -> ()",
    _check,
)
def onebit_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    codes: Tensor,
    threshold: float,
    status: Tensor | None = None,
    step: Tensor | None = None,
) -> None:
    """Encode r = residual + grad and keep the rest: r > t * step: 1, r - step; else 0, r + step.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 32) bytes, as ``onebit_encode`` writes them.
        threshold: t, any number, in units of the step; rounded to float32. It does not change the steps: gradients
            smaller than they drown in them.
        status: int32, 1 element, or None: bit 0 is set where r or what is kept is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.
        step: float32, 1 element; None: 1.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, codes = torch.zeros(2), torch.empty(4, dtype=torch.uint8)
    >>> onebit_encode_feedback(torch.tensor([0.75, -0.25]), residual, codes, 0.5)
    >>> residual, bytes(codes.tolist()).hex()
    (tensor([-0.2500,  0.7500]), '80000000')

    Source: as ``onebit_encode``.
    """
    x = compensate(grad, residual, status)
    above, size = x > threshold_of(threshold, step), 1 if step is None else step
    pack(above.to(torch.uint8), 1, codes)
    residual.copy_(torch.where(above, x - size, x + size))
    if status is not None:
        status |= ~residual.isfinite().all()


@onebit_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor,
    residual: Tensor,
    codes: Tensor,
    threshold: float,
    status: Tensor | None = None,
    step: Tensor | None = None,
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), codes.data_ptr()
    flag, size = (0 if x is None else x.data_ptr() for x in (status, step))
    kernels.onebit_encode_feedback(*addresses, threshold, flag, size, grad.numel(), torch.get_num_threads())
