"""Signs and two means a block of a gradient with its residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._signs import check_block_signs, pack_signs, two_means, without_levels
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["two_means_encode_feedback"]


def _check(
    grad: Tensor, residual: Tensor, means: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    check_vector("two_means_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("two_means_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_block_signs("two_means_encode_feedback", grad, ("means", means, 2), codes, block)
    check_status("two_means_encode_feedback.status", status, grad)


@operation(
    "two_means_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) means, Tensor(d!) codes, int block,"
    " Tensor(e!)? status=None) -> ()",
    _check,
)
def two_means_encode_feedback(
    grad: Tensor, residual: Tensor, means: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    """Encode x = residual + grad as ``two_means_encode`` does and keep the rest: residual = x - the mean of its side.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the payload does not say.
        means: float32, as ``two_means_encode`` writes them.
        codes: uint8, ceil(n / 8) bytes.
        block: elements of a block, a multiple of 32 from 32 to 65536.
        status: int32, 1 element, or None: bit 0 is set where x or one of the means is not finite. Copying ``grad``
            back to ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> residual, means, codes = torch.zeros(4), torch.empty(2), torch.empty(1, dtype=torch.uint8)
    >>> two_means_encode_feedback(torch.tensor([-2.0, -1.0, 1.0, 3.0]), residual, means, codes, block=32)
    >>> residual
    tensor([-0.5000,  0.5000, -1.0000,  1.0000])

    Source: as ``two_means_encode``.
    """
    x = compensate(grad, residual, status)
    means.copy_(two_means(x, block))
    pack_signs(x >= 0, codes)
    residual.copy_(without_levels(x, means[0::2], means[1::2], block))
    if status is not None:
        status |= ~means.isfinite().all()


@two_means_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, means: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), means.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.two_means_encode_feedback(*addresses, block, flag, grad.numel(), torch.get_num_threads())
