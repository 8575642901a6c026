"""Signs and mean magnitudes of a gradient with its residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._signs import check_block_signs, mean_magnitudes, pack_signs, without_levels
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["scaled_sign_encode_feedback"]


def _check(
    grad: Tensor, residual: Tensor, scales: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    check_vector("scaled_sign_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("scaled_sign_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_block_signs("scaled_sign_encode_feedback", grad, ("scales", scales, 1), codes, block)
    check_status("scaled_sign_encode_feedback.status", status, grad)


@operation(
    "scaled_sign_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) scales, Tensor(d!) codes, int block,"
    " Tensor(e!)? status=None) -> ()",
    _check,
)
def scaled_sign_encode_feedback(
    grad: Tensor, residual: Tensor, scales: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    """Encode x = residual + grad as ``scaled_sign_encode`` does and keep the rest: residual = x - sign(x) * mean(|x|).

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the payload does not say.
        scales: float32, as ``scaled_sign_encode`` writes them.
        codes: uint8, ceil(n / 8) bytes.
        block: elements of a block, a multiple of 32 from 32 to 65536.
        status: int32, 1 element, or None: bit 0 is set where x or one of the scales is not finite. Copying ``grad``
            back to ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> residual, scales, codes = torch.zeros(4), torch.empty(1), torch.empty(1, dtype=torch.uint8)
    >>> scaled_sign_encode_feedback(torch.tensor([-2.0, -1.0, 1.0, 3.0]), residual, scales, codes, block=32)
    >>> residual
    tensor([-0.2500,  0.7500, -0.7500,  1.2500])

    Source: as ``scaled_sign_encode``.
    """
    x = compensate(grad, residual, status)
    scales.copy_(mean_magnitudes(x, block))
    pack_signs(x >= 0, codes)
    residual.copy_(without_levels(x, -scales, scales, block))
    if status is not None:
        status |= ~scales.isfinite().all()


@scaled_sign_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, scales: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), scales.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.scaled_sign_encode_feedback(*addresses, block, flag, grad.numel(), torch.get_num_threads())
