"""The length of each block of a tensor."""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.ops._qsgd import norms_of
from gradwire.ops.arguments import Flat, Floats, Where
from gradwire.ops.base import declared

__all__ = ["block_norms"]


@declared
def block_norms(
    x: Floats,
    norms: Annotated[Tensor, Flat(torch.float32, "-(-n // block)", written=True)],
    block: Annotated[int, Where("16 <= block <= 65536 and block % 16 == 0", "a multiple of 16 from 16 to 65536")],
) -> None:
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
