"""Signs, and the means of each block on both sides of zero."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._signs import check_block_signs, pack_signs, two_means
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["two_means_encode"]


def _check(x: Tensor, means: Tensor, codes: Tensor, block: int) -> None:
    check_vector("two_means_encode.x", x, torch.float32, x)
    check_block_signs("two_means_encode", x, ("means", means, 2), codes, block)


@operation("two_means_encode(Tensor x, Tensor(a!) means, Tensor(b!) codes, int block) -> ()", _check)
def two_means_encode(x: Tensor, means: Tensor, codes: Tensor, block: int) -> None:
    """Write the sign of each element and two means of each block: C(x) = mean of the elements of x's sign.

    An element of zero counts as positive, a NaN as negative.

    Args:
        x: float32, n elements.
        means: float32, 2 * ceil(n / block): of each block the mean below zero, then of the rest; 0 of nothing.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, 1 where x >= 0; the tail is 0.
        block: elements of a block, a multiple of 32 from 32 to 65536; smaller: less error, 8 bytes each.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> means, codes = torch.empty(2), torch.empty(1, dtype=torch.uint8)
    >>> two_means_encode(torch.tensor([-2.0, -1.0, 1.0, 3.0]), means, codes, block=32)
    >>> means, f"{codes.item():08b}"
    (tensor([-1.5000,  2.0000]), '00001100')

    Source: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", INTERSPEECH 2014.
    """
    means.copy_(two_means(x, block))
    pack_signs(x >= 0, codes)


@two_means_encode.kernel("CPU")
def _cpu(x: Tensor, means: Tensor, codes: Tensor, block: int) -> None:
    addresses = x.data_ptr(), means.data_ptr(), codes.data_ptr()
    kernels.two_means_encode(*addresses, block, x.numel(), torch.get_num_threads())
