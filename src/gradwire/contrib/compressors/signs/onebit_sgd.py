"""Signs with the means of their block on both sides of zero."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.signs import ops
from gradwire.compressors.signs.blocks import BlockSigns

__all__ = ["OneBitSGD"]


@dataclass(frozen=True)
class OneBitSGD(BlockSigns):
    """Send each element's sign and, for each block, the means below and above zero, and keep the rest.

    C(x) = mean of the elements of the block with x >= 0 where x >= 0, mean of the others where x < 0; 0 of none.

    The sum of a block arrives exactly; what is lost is |x|^2 - n0 mu0^2 - n1 mu1^2, never more than in ``efsignsgd``.
    The paper groups by columns of a weight matrix and switches at zero, as here; groups are blocks of any tensor.

    Args:
        block: elements of a group, a multiple of 32 in [32, 65536]; each costs 64 bits. Smaller: less error.

    Raises:
        ConfigError: the block is outside its range.

    Example:
        >>> import torch
        >>> code = OneBitSGD()
        >>> code.layout((3000,)).nbytes
        399
        >>> code.decompress(code.compress(torch.tensor([-2.0, -1.0, 1.0, 3.0])), (4,)).tolist()
        [-1.5, -1.5, 2.0, 2.0]

    Source:
        F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
        Data-Parallel Distributed Training of Speech DNNs", INTERSPEECH 2014.
    """

    block: int = 1024

    name = "onebit_sgd"
    takes_pieces = True
    reference = "F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, 1-Bit SGD, INTERSPEECH 2014"
    numbers = ("means", 2)
    operations = (ops.two_means_encode, ops.two_means_encode_feedback, ops.two_means_add_decoded)
