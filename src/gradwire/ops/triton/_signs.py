"""Signs in bits, the first element in the lowest bit, and blocks of 32 lanes, as ``gradwire.ops._signs`` has them.

A tile is (blocks, 32 lanes). Sums run along a block tile by tile, so every lane adds in the order of the reference.
"""

import triton
import triton.language as tl

__all__ = [
    "LANES",
    "ROWS",
    "blocks",
    "count_of",
    "elements",
    "pack_signs",
    "store_signs",
    "total",
    "total_of_16",
    "unpack_signs",
]

LANES = 32
ROWS = 16  # blocks for one program

_LANES = tl.constexpr(LANES)


@triton.jit
def pack_signs(positive: tl.tensor) -> tl.tensor:
    """The byte of each row of eight truth values."""
    return tl.sum(positive.to(tl.int32) << tl.arange(0, 8)[None, :], axis=1).to(tl.uint8)


@triton.jit
def unpack_signs(codes: tl.tensor) -> tl.tensor:
    """The truth values in each byte, one row for each."""
    return ((codes.to(tl.int32)[:, None] >> tl.arange(0, 8)[None, :]) & 1) != 0


@triton.jit
def blocks(ROWS: tl.constexpr) -> tl.tensor:
    """The indices of this program's blocks, in 64 bits."""
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def elements(block: tl.tensor, start: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """The indices of the 32 elements from ``start`` on in each block: (ROWS, 32)."""
    return (block * SIZE + start)[:, None] + tl.arange(0, _LANES)[None, :]


@triton.jit
def count_of(block: tl.tensor, n: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """How many elements each block has; 1 beyond the last one, so that it can be divided by."""
    return tl.maximum(tl.minimum(n - block * SIZE, SIZE), 1)


@triton.jit
def total(lanes: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """The sum of each row of 32, as a tree."""
    return total_of_16(_fold(lanes, ROWS, 16), ROWS)


@triton.jit
def total_of_16(lanes: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """The sum of each row of 16, as a tree."""
    four = _fold(_fold(lanes, ROWS, 8), ROWS, 4)
    return tl.reshape(_fold(_fold(four, ROWS, 2), ROWS, 1), (ROWS,))


@triton.jit
def store_signs(
    positive: tl.tensor, block: tl.tensor, start: tl.tensor, codes: tl.tensor, size: tl.tensor,
    ROWS: tl.constexpr, SIZE: tl.constexpr,
) -> None:  # fmt: skip
    """Write the four bytes of each row of 32 truth values."""
    bits = tl.reshape(positive.to(tl.int32), (ROWS, 4, 8)) << tl.arange(0, 8)[None, None, :]
    byte = ((block * SIZE + start) // 8)[:, None] + tl.arange(0, 4)[None, :]
    tl.store(codes + byte, tl.sum(bits, axis=2).to(tl.uint8), mask=byte < size)


@triton.jit
def _fold(lanes: tl.tensor, ROWS: tl.constexpr, HALF: tl.constexpr) -> tl.tensor:
    """The lower half of the lanes plus the upper one."""
    low, high = tl.split(tl.permute(tl.reshape(lanes, (ROWS, 2, HALF)), (0, 2, 1)))
    return low + high
