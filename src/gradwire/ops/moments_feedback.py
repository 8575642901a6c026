"""The moments of a gradient and what was not sent before, whose sum becomes the residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._moments import check_table, write_moments
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["moments_feedback"]


def _check(grad: Tensor, residual: Tensor, table: Tensor, centred: bool, status: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("moments_feedback.grad", grad, torch.float32, grad)
    check_vector("moments_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_table("moments_feedback", table, grad)
    check_status("moments_feedback.status", status, grad)


@operation(
    "moments_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) table, bool centred,"
    " Tensor(d!)? status=None) -> ()",
    _check,
)
def moments_feedback(
    grad: Tensor, residual: Tensor, table: Tensor, centred: bool, status: Tensor | None = None
) -> None:
    """Put x = residual + grad into ``residual`` and measure it as ``moments`` does: the first of two passes.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements; receives x.
        table: float32, 4 * ceil(n / 4096).
        centred: as for ``moments``.
        status: int32 of one element, or None: bit 0 is set where an element of x is not finite.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, table = torch.tensor([1.0, -1.0, 0.5]), torch.empty(4)
    >>> moments_feedback(torch.tensor([2.0, -4.0, 0.5]), residual, table, centred=True)
    >>> residual.tolist(), table.tolist()
    ([3.0, -5.0, 1.0], [5.0, 3.0, -10.0, 68.0])
    """
    residual.copy_(compensate(grad, residual, status))
    write_moments(residual, table, centred)


@moments_feedback.kernel("CPU")
def _cpu(grad: Tensor, residual: Tensor, table: Tensor, centred: bool, status: Tensor | None = None) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), table.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.moments_feedback(*addresses, centred, flag, grad.numel(), torch.get_num_threads())
