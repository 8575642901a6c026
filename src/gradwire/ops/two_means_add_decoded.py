"""The sum of signs that have two means for each block."""

import torch
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._signs import add_levels, check_block_rows
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["two_means_add_decoded"]


def _check(means: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:  # noqa: ARG001
    check_block_rows("two_means_add_decoded", out, ("means", means, 2), codes, block)


@operation("two_means_add_decoded(Tensor means, Tensor codes, Tensor(a!) out, int block, float scale) -> ()", _check)
def two_means_add_decoded(means: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * upper mean, 0: scale * lower mean).

    Args:
        means: float32, (W, 2 * ceil(n / block)), rows contiguous: the lower and the upper mean of each block.
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``two_means_encode`` writes them.
        out: float32, n elements.
        block: elements of a block, a multiple of 32 from 32 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> out, codes = torch.zeros(4), torch.tensor([[0b1100]], dtype=torch.uint8)
    >>> two_means_add_decoded(torch.tensor([[-1.5, 2.0]]), codes, out, block=32, scale=1.0)
    >>> out
    tensor([-1.5000, -1.5000,  2.0000,  2.0000])

    Source: as ``two_means_encode``.
    """
    for row_means, row_codes in zip(means, codes, strict=True):
        levels = row_means * float32(scale)
        add_levels(row_codes, out, levels[0::2], levels[1::2], block)


@two_means_add_decoded.kernel("CPU")
def _cpu(means: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    level_rows = means.data_ptr(), means.stride(0) * means.element_size()
    code_rows = codes.data_ptr(), codes.stride(0)
    ranks, n, threads = codes.size(0), out.numel(), torch.get_num_threads()
    kernels.two_means_add_decoded(*level_rows, *code_rows, ranks, out.data_ptr(), block, scale, n, threads)
