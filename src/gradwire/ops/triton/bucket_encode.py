"""The bucket of each element, and the sums of these in float64, in whatever order the programs come."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._tile import elements

__all__ = ["bucket_encode"]

TABLES = 64  # that programs share: a table for all would have them wait for each other
BUCKETS = 256


@triton.jit
def _kernel(
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
    """As the operation."""
    tables = torch.zeros(TABLES, BUCKETS, dtype=torch.float64, device=x.device)
    counted = torch.zeros(TABLES, BUCKETS, dtype=torch.int32, device=x.device)
    sizes = {"TABLES": TABLES, "BUCKETS": BUCKETS, "BLOCK": BLOCK}
    launch(_kernel, (triton.cdiv(x.numel(), BLOCK),), x, bucket_of, codes, tables, counted, x.numel(), **sizes)
    torch.sum(tables, 0, out=sums)
    torch.sum(counted, 0, out=counts)
