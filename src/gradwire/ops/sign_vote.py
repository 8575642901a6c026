"""A mean of signs becomes the sign of the majority."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sign_vote"]

TIE = 2.0**-12


def _check(mean: Tensor, tie: float) -> None:
    check_vector("sign_vote.mean", mean, torch.float32, mean)
    require(tie in (-1.0, 0.0, 1.0), "sign_vote.tie", "-1, 0 or 1", tie)


@operation("sign_vote(Tensor(a!) mean, float tie) -> ()", _check)
def sign_vote(mean: Tensor, tie: float) -> None:
    """Replace each mean of signs by the sign of the majority; one that is not a number stays.

    A mean of at most 2**-12 is a tie: multiples of a rounded 1 / W do not always cancel in the last bits, and a
    majority of one among up to 2048 ranks is 2**-11 or more.

    Args:
        mean: float32, n elements.
        tie: -1, 0 or 1; what a tie becomes.

    Raises:
        ConfigError: the tensor is not of this form, or another tie.

    >>> mean = torch.tensor([0.5, -0.25, 0.0])
    >>> sign_vote(mean, 1.0)
    >>> mean
    tensor([ 1., -1.,  1.])

    Source: J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019.
    """
    tied = mean.abs() <= TIE
    sign = torch.where(mean.isnan(), mean, mean.sign())
    mean.copy_(sign.masked_fill_(tied, tie))


@sign_vote.kernel("CPU")
def _cpu(mean: Tensor, tie: float) -> None:
    kernels.sign_vote(mean.data_ptr(), tie, mean.numel(), torch.get_num_threads())
