"""The mean that summed levels stand for."""

import math

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_vector, float32
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sums_add_decoded"]


def _check(norm: Tensor, sums: Tensor, ranks: Tensor, out: Tensor, levels: int, scale: float) -> None:  # noqa: ARG001
    require(is_int(levels, 1, 127), "sums_add_decoded.levels", "an integer from 1 to 127", levels)
    some = min(out.numel(), 1)
    check_vector("sums_add_decoded.out", out, torch.float32, out)
    check_vector("sums_add_decoded.sums", sums, torch.uint8, out, out.numel())
    check_vector("sums_add_decoded.norm", norm, torch.float32, out, some)
    check_vector("sums_add_decoded.ranks", ranks, torch.int32, out, some)


@operation(
    "sums_add_decoded(Tensor norm, Tensor sums, Tensor ranks, Tensor(a!) out, int levels, float scale) -> ()", _check
)
def sums_add_decoded(norm: Tensor, sums: Tensor, ranks: Tensor, out: Tensor, levels: int, scale: float) -> None:
    """Add the mean of levels that W ranks added up: out = out + (scale N / (s W)) (sum - s W).

    Args:
        norm: float32, 1 element: N, what the highest level stands for. Empty if n = 0.
        sums: uint8, n elements: of each rank's level, from -s to s, and s.
        ranks: int32, 1 element: W. Where the sums of so many do not fit into a byte everything becomes NaN.
        out: float32, n elements.
        levels: s, from 1 to 127.
        scale: of what is added.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> out, sums = torch.zeros(3), torch.tensor([0, 6, 11], dtype=torch.uint8)
    >>> sums_add_decoded(torch.tensor([6.0]), sums, torch.tensor([2], dtype=torch.int32), out, levels=3, scale=1.0)
    >>> out.tolist()
    [-6.0, 0.0, 5.0]
    """
    fits = (ranks > 0) & (ranks <= 255 // (2 * levels))
    bias = levels * ranks
    step = float32(scale) * (norm / bias.masked_fill(~fits, 1)).masked_fill(~fits, math.nan)
    out += step * (sums.int() - bias)


@sums_add_decoded.kernel("CPU")
def _cpu(norm: Tensor, sums: Tensor, ranks: Tensor, out: Tensor, levels: int, scale: float) -> None:
    addresses = norm.data_ptr(), sums.data_ptr(), ranks.data_ptr(), out.data_ptr()
    kernels.sums_add_decoded(*addresses, levels, scale, out.numel(), torch.get_num_threads())
