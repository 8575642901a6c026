"""Waves of tiles on a GPU; rotations are left to torch."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton.launch import BLOCK, launch
from gradwire.ops.validation import float32

__all__ = ["waves_add_decoded"]

_WIDEST = 64  # columns for one program


@triton.jit
def _waves(
    values: tl.tensor,
    places: tl.tensor,
    tall: tl.tensor,
    wide: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    k: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The waves of k coefficients at these rows and columns of a tile."""
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for c in range(k):
        where = tl.load(places + c).to(tl.int32) & 0xFFFF
        there = where < a * b
        f, g = (where // b).to(tl.int64), (where % b).to(tl.int64)
        left = tl.load(tall + f * a + row, mask=there & (row < a), other=0.0) * tl.load(values + c)
        right = tl.load(wide + g * b + column, mask=column < b, other=0.0)
        sums = tl.where(there, sums + left[:, None] * right[None, :], sums)
    return sums


@triton.jit
def _waves_add_decoded(
    values: tl.tensor,
    value_stride: tl.tensor,
    places: tl.tensor,
    place_stride: tl.tensor,
    ranks: tl.tensor,
    tall: tl.tensor,
    wide: tl.tensor,
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    k: tl.tensor,
    across: tl.tensor,
    pitch: tl.tensor,
    scale: tl.float32,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    at = out + (tile // across * a + row)[:, None] * pitch + (tile % across * b + column)[None, :]
    inside = (row < a)[:, None] & (column < b)[None, :]
    total = tl.load(at, mask=inside, other=0.0)
    values += tile * k
    places += tile * k
    for _ in range(ranks):
        total += _waves(values, places, tall, wide, row, column, a, b, k, ROWS, COLUMNS) * scale
        values += value_stride
        places += place_stride
    tl.store(at, total, mask=inside)


def waves_add_decoded(
    values: Tensor,
    places: Tensor,
    tall: Tensor,
    wide: Tensor,
    out: Tensor,
    a: int,
    b: int,
    down: int,
    across: int,
    pitch: int,
    scale: float,
) -> None:
    """The operation on a GPU."""
    columns = min(triton.next_power_of_2(b), _WIDEST)
    rows = min(triton.next_power_of_2(a), BLOCK // columns)
    grid = (down * across, triton.cdiv(a, rows), triton.cdiv(b, columns))
    payloads = values, values.stride(0), places, places.stride(0), values.size(0)
    sizes = a, b, values.size(1) // (down * across), across, pitch
    launch(_waves_add_decoded, grid, *payloads, tall, wide, out, *sizes, float32(scale), ROWS=rows, COLUMNS=columns)
