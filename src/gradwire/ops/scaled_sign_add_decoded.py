"""The sum of signs that have a scale for each block."""

import torch
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._signs import add_levels, check_block_rows
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["scaled_sign_add_decoded"]


def _check(scales: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:  # noqa: ARG001
    check_block_rows("scaled_sign_add_decoded", out, ("scales", scales, 1), codes, block)


@operation("scaled_sign_add_decoded(Tensor scales, Tensor codes, Tensor(a!) out, int block, float scale) -> ()", _check)
def scaled_sign_add_decoded(scales: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * S, 0: -(scale * S)).

    Args:
        scales: float32, (W, ceil(n / block)), rows contiguous: the scale S of each block.
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``scaled_sign_encode`` writes them.
        out: float32, n elements.
        block: elements of a block, a multiple of 32 from 32 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> out, codes = torch.zeros(4), torch.tensor([[0b1100]], dtype=torch.uint8)
    >>> scaled_sign_add_decoded(torch.tensor([[1.75]]), codes, out, block=32, scale=1.0)
    >>> out
    tensor([-1.7500, -1.7500,  1.7500,  1.7500])

    Source: as ``scaled_sign_encode``.
    """
    for row_scales, row_codes in zip(scales, codes, strict=True):
        high = row_scales * float32(scale)
        add_levels(row_codes, out, -high, high, block)


@scaled_sign_add_decoded.kernel("CPU")
def _cpu(scales: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    level_rows = scales.data_ptr(), scales.stride(0) * scales.element_size()
    code_rows = codes.data_ptr(), codes.stride(0)
    ranks, n, threads = codes.size(0), out.numel(), torch.get_num_threads()
    kernels.scaled_sign_add_decoded(*level_rows, *code_rows, ranks, out.data_ptr(), block, scale, n, threads)
