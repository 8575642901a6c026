"""Buckets on a GPU, and what is read off sketches; their sums are left to torch, because these have a fixed order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton.launch import BLOCK, launch
from gradwire.ops.triton.many import mergeable
from gradwire.ops.triton.philox import philox_words
from gradwire.ops.triton.tile import elements
from gradwire.ops.validation import float32

__all__ = ["bucket_add_decoded", "bucket_encode", "sketch_estimate"]

TABLES = 64  # that programs share: a table for all would have them wait for each other
BUCKETS = 256

_LANES = tl.constexpr(16)  # elements of a block, and columns of a line


@triton.jit
def _bucket_encode(
    x: tl.tensor,
    bucket_of: tl.tensor,
    codes: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    TABLES: tl.constexpr,
    BUCKETS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i = elements(BLOCK)
    inside = i < n
    value = tl.load(x + i, mask=inside, other=0.0)
    upper = (value.to(tl.int32, bitcast=True) >> 16) & 0xFFFF
    bucket = tl.load(bucket_of + upper)
    tl.store(codes + i, bucket, mask=inside)
    place = tl.program_id(0) % TABLES * BUCKETS + bucket.to(tl.int32)
    tl.atomic_add(sums + place, value.to(tl.float64), mask=inside, sem="relaxed")
    tl.atomic_add(counts + place, 1, mask=inside, sem="relaxed")


def bucket_encode(x: Tensor, bucket_of: Tensor, codes: Tensor, sums: Tensor, counts: Tensor) -> None:
    """The operation on a GPU; the order of its sums depends on that of the programs."""
    tables = torch.zeros(TABLES, BUCKETS, dtype=torch.float64, device=x.device)
    counted = torch.zeros(TABLES, BUCKETS, dtype=torch.int32, device=x.device)
    sizes = {"TABLES": TABLES, "BUCKETS": BUCKETS, "BLOCK": BLOCK}
    launch(_bucket_encode, (triton.cdiv(x.numel(), BLOCK),), x, bucket_of, codes, tables, counted, x.numel(), **sizes)
    torch.sum(tables, 0, out=sums)
    torch.sum(counted, 0, out=counts)


@triton.jit
def _bucket_add_decoded(
    codes: tl.tensor,
    code_stride: tl.tensor,
    levels: tl.tensor,
    level_stride: tl.tensor,
    ranks: tl.tensor,
    last: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    scale: tl.float32,
    BLOCK: tl.constexpr,
) -> None:
    i = elements(BLOCK)
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        total += tl.load(levels + tl.minimum(code, last)) * scale
        codes += code_stride
        levels += level_stride
    tl.store(out + i, total, mask=i < n)


def bucket_add_decoded(codes: Tensor, levels: Tensor, out: Tensor, scale: float) -> None:
    """The operation on a GPU."""
    ranks, n = codes.shape
    rows = codes, codes.stride(0), levels, levels.stride(0), ranks, levels.size(1) - 1
    launch(_bucket_add_decoded, (triton.cdiv(n, BLOCK),), *rows, out, n, float32(scale), BLOCK=BLOCK)


@triton.jit
def _seen(
    table: tl.tensor,
    i: tl.tensor,
    inside: tl.tensor,
    columns: tl.tensor,
    key: tl.tensor,
    step: tl.tensor,
    ROWS: tl.constexpr,
    ROW: tl.constexpr,
) -> tl.tensor:
    """Read off one row of the table what it says of the elements ``i``."""
    number, lane = i // _LANES * ROWS + ROW, (i % _LANES).to(tl.uint32)
    word0, word1, word2, word3 = philox_words(number // 2, key, step)
    even = number % 2 == 0
    first = tl.where(even, word0, word2).to(tl.uint32).to(tl.int64)
    second = tl.where(even, word1, word3).to(tl.uint32)
    line = (first * (columns // _LANES) >> 32) * _LANES
    value = tl.load(table + ROW * columns + line + (lane ^ (second >> 28)), mask=inside, other=0.0)
    return value * (1.0 - 2.0 * ((second >> lane) & 1).to(tl.float32))


@triton.jit
def _ordered(a: tl.tensor, b: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    swap = b < a
    return tl.where(swap, b, a), tl.where(swap, a, b)


@triton.jit
def _largest_last(
    v0: tl.tensor,
    v1: tl.tensor,
    v2: tl.tensor,
    v3: tl.tensor,
    v4: tl.tensor,
    v5: tl.tensor,
    v6: tl.tensor,
    COUNT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Exchange neighbours of the first ``COUNT`` until the largest is their last."""
    if COUNT > 1:
        v0, v1 = _ordered(v0, v1)
    if COUNT > 2:
        v1, v2 = _ordered(v1, v2)
    if COUNT > 3:
        v2, v3 = _ordered(v2, v3)
    if COUNT > 4:
        v3, v4 = _ordered(v3, v4)
    if COUNT > 5:
        v4, v5 = _ordered(v4, v5)
    if COUNT > 6:
        v5, v6 = _ordered(v5, v6)
    return v0, v1, v2, v3, v4, v5, v6


@triton.jit(do_not_specialize=["key", "step"])
def _sketch_estimate(
    table: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    columns: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    i = elements(BLOCK, program)
    inside = i < n
    v0 = _seen(table, i, inside, columns, key, step, ROWS, 0)
    v1, v2, v3, v4, v5, v6 = v0, v0, v0, v0, v0, v0
    if ROWS >= 3:
        v1 = _seen(table, i, inside, columns, key, step, ROWS, 1)
        v2 = _seen(table, i, inside, columns, key, step, ROWS, 2)
    if ROWS >= 5:
        v3 = _seen(table, i, inside, columns, key, step, ROWS, 3)
        v4 = _seen(table, i, inside, columns, key, step, ROWS, 4)
    if ROWS >= 7:
        v5 = _seen(table, i, inside, columns, key, step, ROWS, 5)
        v6 = _seen(table, i, inside, columns, key, step, ROWS, 6)
    # The largest of the first rows goes to their end, until the middle one has its place.
    for ordered in tl.static_range(ROWS - ROWS // 2):
        v0, v1, v2, v3, v4, v5, v6 = _largest_last(v0, v1, v2, v3, v4, v5, v6, ROWS - ordered)
    if ROWS == 1:
        tl.store(out + i, v0, mask=inside)
    elif ROWS == 3:
        tl.store(out + i, v1, mask=inside)
    elif ROWS == 5:
        tl.store(out + i, v2, mask=inside)
    else:
        tl.store(out + i, v3, mask=inside)


@mergeable
def sketch_estimate(table: Tensor, out: Tensor, rows: int, key: int, step: int) -> None:
    """The operation on a GPU."""
    columns = table.numel() // rows
    launch(
        _sketch_estimate,
        (triton.cdiv(out.numel(), BLOCK),),
        table,
        out,
        out.numel(),
        columns,
        key,
        step,
        ROWS=rows,
        BLOCK=BLOCK,
    )
