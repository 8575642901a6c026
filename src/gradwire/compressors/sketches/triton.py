"""Buckets on a GPU; sketches are left to torch, because their sums have a fixed order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton.launch import BLOCK, launch
from gradwire.ops.triton.tile import elements
from gradwire.ops.validation import float32

__all__ = ["bucket_add_decoded", "bucket_encode"]

TABLES = 64  # that programs share: a table for all would have them wait for each other
BUCKETS = 256


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
