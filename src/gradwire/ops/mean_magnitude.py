"""The mean magnitude of a tensor."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._signs import SUM_BLOCK, block_sums, mean_of_sums
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["mean_magnitude"]


def _check(x: Tensor, mean: Tensor, residual: Tensor | None = None) -> None:
    check_vector("mean_magnitude.x", x, torch.float32, x)
    check_vector("mean_magnitude.mean", mean, torch.float32, x, 1)
    if residual is not None:
        check_vector("mean_magnitude.residual", residual, torch.float32, x, x.numel())


@operation("mean_magnitude(Tensor x, Tensor(a!) mean, Tensor? residual=None) -> ()", _check)
def mean_magnitude(x: Tensor, mean: Tensor, residual: Tensor | None = None) -> None:
    """The mean of |x|, or of |residual + x|; 0 of no elements. The order of the sum does not depend on the threads.

    Args:
        x: float32, n elements.
        mean: float32, 1 element.
        residual: float32, n elements, or None.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> mean = torch.empty(1)
    >>> mean_magnitude(torch.tensor([1.0, -2.0]), mean)
    >>> mean
    tensor([1.5000])
    """
    mean.copy_(mean_of_sums(block_sums((x if residual is None else residual + x).abs(), SUM_BLOCK), x.numel()))


@mean_magnitude.kernel("CPU")
def _cpu(x: Tensor, mean: Tensor, residual: Tensor | None = None) -> None:
    added = 0 if residual is None else residual.data_ptr()
    kernels.mean_magnitude(x.data_ptr(), added, mean.data_ptr(), x.numel(), torch.get_num_threads())
