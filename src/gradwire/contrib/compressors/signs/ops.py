"""The signs of a momentum.

Element i is bit i % 8 of byte i // 8, bit 0 the lowest; 1 where it is zero or above, whatever its sign bit, 0 where it
is below or a NaN. The bits beyond the last element are 0.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack_bits
from gradwire.kernels.feedback import advance

__all__ = [
    "signum_encode",
]


Signs = Annotated[Tensor, Flat(torch.uint8, "-(-n // 8)", written=True)]
Beta = Annotated[float, Where("0 <= beta < 1 - 2**-25", "in [0, 1) in float32")]


@declared
def signum_encode(grad: Written, momentum: Written, codes: Signs, beta: Beta, status: Status = None) -> None:
    """``momentum_update``, then ``sign_encode`` of the new momentum, in one pass over memory.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old momentum.
        momentum: float32, n elements.
        codes: uint8, ceil(n / 8) bytes, as ``sign_encode`` writes them.
        beta: weight of the old momentum, in [0, 1).
        status: int32, 1 element, or None: bit 0 is set where the new momentum is not finite.

    >>> grad, momentum, codes = torch.tensor([4.0, -5.0]), torch.tensor([-1.0, 1.0]), torch.empty(1, dtype=torch.uint8)
    >>> signum_encode(grad, momentum, codes, 0.5)
    >>> momentum, codes.item()
    (tensor([ 1.5000, -2.0000]), 1)

    Source: as ``momentum_update``.
    """
    advance(grad, momentum, beta, status)
    pack_bits(momentum >= 0, codes)
