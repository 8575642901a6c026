"""QSGD on a GPU: tiles of (blocks, groups, 8 elements).

A group of 8 lies in one block, has one Philox counter, and its codes start at a whole byte whatever the number of bits.
"""

import triton
import triton.language as tl

from gradwire.ops.triton._launch import BLOCK
from gradwire.ops.triton._philox import philox_words

__all__ = ["blocks", "decode", "elements", "encode", "groups", "largest", "norm_of", "step_of", "tile"]

_NOWHERE = tl.constexpr(2**40)  # the group of what a tile holds beyond the end of its block: beyond every tensor
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_TINY = tl.constexpr(2.0**-120)
_UNIT = tl.constexpr(2.0**-16)


def tile(block: int) -> dict[str, int]:
    """The tile of a program: several whole blocks, or a part of one."""
    span = min(triton.next_power_of_2(block // 8), BLOCK // 8)
    return {"GROUPS": block // 8, "SPAN": span, "ROWS": BLOCK // 8 // span}


@triton.jit
def blocks(ROWS: tl.constexpr) -> tl.tensor:
    """The indices of this program's blocks, in 64 bits."""
    return tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)


@triton.jit
def groups(block: tl.tensor, start: tl.tensor, GROUPS: tl.constexpr, SPAN: tl.constexpr) -> tl.tensor:
    """The indices of the groups from ``start`` on in each block: (ROWS, SPAN)."""
    column = (start + tl.arange(0, SPAN))[None, :]
    return tl.where(column < GROUPS, block[:, None] * GROUPS + column, _NOWHERE)


@triton.jit
def elements(group: tl.tensor) -> tl.tensor:
    """The indices of the elements of each group: (ROWS, SPAN, 8)."""
    return group[:, :, None] * 8 + tl.arange(0, 8)[None, None, :]


@triton.jit
def largest(x: tl.tensor) -> tl.tensor:
    """The largest magnitude in each block, as the integer of its bits: a NaN is larger than infinity."""
    magnitude = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    return tl.max(tl.max(magnitude, axis=2), axis=1)


@triton.jit
def norm_of(magnitude: tl.tensor) -> tl.tensor:
    """The norm of each block from its largest magnitude."""
    norm = magnitude.to(tl.float32, bitcast=True)
    return tl.where(norm < _TINY, 0.0, norm)


@triton.jit
def step_of(norm: tl.tensor, TOP: tl.constexpr) -> tl.tensor:
    """The distance of two neighbouring levels in each block."""
    return tl.div_rn(norm, _top(norm, TOP))


@triton.jit
def encode(
    x: tl.tensor,
    group: tl.tensor,
    norm: tl.tensor,
    codes: tl.tensor,
    size: tl.tensor,
    key: tl.tensor,
    step: tl.tensor,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
) -> tl.tensor:
    """Round a tile to its levels and write their codes; the levels are returned, as int32."""
    usable = (norm > 0.0) & (norm < float("inf"))
    inverse = tl.where(usable, tl.div_rn(_top(norm, TOP), norm), 0.0)
    shifted = tl.abs(x) * inverse[:, None, None] + _uniform(group, key, step)
    # Nothing is negative here, so the conversion to an integer is the floor.
    level = tl.minimum(shifted, TOP * 1.0).to(tl.int32)
    q = tl.where(usable[:, None, None], tl.where(x < 0.0, -level, level), 0)
    _store(q, group, codes, size, BITS)
    return q


@triton.jit
def decode(codes: tl.tensor, group: tl.tensor, size: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """The levels of a tile, as float32."""
    byte, shift, inside = _bytes(group, size, BITS)
    parts = tl.load(codes + byte, mask=inside, other=0).to(tl.int64)
    word = tl.sum(parts << shift, axis=2)
    raw = (word[:, :, None] >> (tl.arange(0, 8)[None, None, :] * BITS)).to(tl.int32) & ((1 << BITS) - 1)
    sign = 1 << (BITS - 1)
    return ((raw ^ sign) - sign).to(tl.float32)


@triton.jit
def _store(q: tl.tensor, group: tl.tensor, codes: tl.tensor, size: tl.tensor, BITS: tl.constexpr) -> None:
    raw = (q & ((1 << BITS) - 1)).to(tl.int64)
    word = tl.sum(raw << (tl.arange(0, 8)[None, None, :] * BITS), axis=2)
    byte, shift, inside = _bytes(group, size, BITS)
    tl.store(codes + byte, (word[:, :, None] >> shift).to(tl.uint8), mask=inside)


@triton.jit
def _bytes(group: tl.tensor, size: tl.tensor, BITS: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The indices of the bytes of each group, their places in its word, and which of them there are."""
    slot = tl.arange(0, 2 if BITS == 2 else 4 if BITS <= 4 else 8)[None, None, :]
    byte = group[:, :, None] * BITS + slot
    return byte, slot * 8, (slot < BITS) & (byte < size)


@triton.jit
def _uniform(group: tl.tensor, key: tl.tensor, step: tl.tensor) -> tl.tensor:
    """16 bits of Philox for each element, as the middles of 2**16 parts of (0, 1)."""
    lane = tl.arange(0, 8)[None, None, :]
    word0, word1, word2, word3 = philox_words(group, key, step)
    low = tl.where(lane < 2, word0[:, :, None], word1[:, :, None])
    high = tl.where(lane < 6, word2[:, :, None], word3[:, :, None])
    half = tl.where(lane < 4, low, high) >> (lane % 2 * 16).to(tl.uint32)
    return ((half & 0xFFFF).to(tl.float32) + 0.5) * _UNIT


@triton.jit
def _top(norm: tl.tensor, TOP: tl.constexpr) -> tl.tensor:
    """The highest level, once for each block."""
    return tl.full(norm.shape, TOP, tl.float32)
