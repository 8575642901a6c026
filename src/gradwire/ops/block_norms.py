"""The length of each block of a tensor."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._qsgd import check_parameters, norms_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["block_norms"]


def _check(x: Tensor, norms: Tensor, block: int) -> None:
    check_parameters("block_norms", 8, block)
    check_vector("block_norms.x", x, torch.float32, x)
    check_vector("block_norms.norms", norms, torch.float32, x, -(-x.numel() // block))


@operation("block_norms(Tensor x, Tensor(a!) norms, int block) -> ()", _check)
def block_norms(x: Tensor, norms: Tensor, block: int) -> None:
    """The root of the sum of squares of each block, as ``qsgd_encode`` takes it with the norm "l2".

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block). One below 2**-120 is zero.
        block: a multiple of 16 from 16 to 65536.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> norms = torch.empty(1)
    >>> block_norms(torch.tensor([3.0, -4.0]), norms, block=16)
    >>> norms.item()
    5.0
    """
    norms.copy_(norms_of(x, block, "l2"))


@block_norms.kernel("CPU")
def _cpu(x: Tensor, norms: Tensor, block: int) -> None:
    kernels.block_norms(x.data_ptr(), norms.data_ptr(), block, x.numel(), torch.get_num_threads())
