"""Whether a tensor holds a value that is infinite or not a number."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["nonfinite"]


def _check(x: Tensor, status: Tensor) -> None:
    check_vector("nonfinite.x", x, torch.float32, x)
    check_vector("nonfinite.status", status, torch.int32, x, 1)


@operation("nonfinite(Tensor x, Tensor(a!) status) -> ()", _check)
def nonfinite(x: Tensor, status: Tensor) -> None:
    """Set bit 0 of ``status`` where x has a NaN or an infinity: status |= any(!isfinite(x)).

    Args:
        x: float32, n elements.
        status: int32, 1 element; never cleared.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> status = torch.zeros(1, dtype=torch.int32)
    >>> nonfinite(torch.tensor([1.0, float("inf")]), status)
    >>> status
    tensor([1], dtype=torch.int32)
    """
    status |= ~torch.isfinite(x).all()


@nonfinite.kernel("CPU")
def _cpu(x: Tensor, status: Tensor) -> None:
    kernels.nonfinite(x.data_ptr(), status.data_ptr(), x.numel(), torch.get_num_threads())
