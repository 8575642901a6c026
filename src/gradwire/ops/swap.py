"""Two tensors exchange their contents."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["swap"]

_CHUNK = 16384  # elements held a second time: no step may allocate as much as a gradient


def _check(a: Tensor, b: Tensor) -> None:
    check_vector("swap.a", a, torch.float32, a)
    check_vector("swap.b", b, torch.float32, a, a.numel())


@operation("swap(Tensor(a!) a, Tensor(b!) b) -> ()", _check)
def swap(a: Tensor, b: Tensor) -> None:
    """Exchange the contents of two tensors, in place: a, b = b, a.

    Args:
        a: float32, n elements.
        b: float32, n elements, not overlapping a.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> swap(a, b)
    >>> a, b
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    for begin in range(0, a.numel(), _CHUNK):
        x, y = a[begin : begin + _CHUNK], b[begin : begin + _CHUNK]
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)


@swap.kernel("CPU")
def _cpu(a: Tensor, b: Tensor) -> None:
    kernels.swap(a.data_ptr(), b.data_ptr(), a.numel(), torch.get_num_threads())
