"""What the two top-k encoders share: of the magnitudes equal to the least that is kept, the first ones are taken."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import PART, before, rank, write_counts
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._select import least_of, magnitudes
from gradwire.ops.triton._tile import elements

__all__ = ["write_largest"]


@triton.jit
def _count(
    x: tl.tensor, least: tl.tensor, larger: tl.tensor, equal: tl.tensor, n: tl.tensor, PART: tl.constexpr
) -> None:
    magnitude, limit = magnitudes(x, elements(PART), n), tl.load(least)
    tl.store(larger + tl.program_id(0), tl.sum((magnitude > limit).to(tl.int32)))
    tl.store(equal + tl.program_id(0), tl.sum((magnitude == limit).to(tl.int32)))


@triton.jit
def _write(
    x: tl.tensor,
    least: tl.tensor,
    ties: tl.tensor,
    starts: tl.tensor,
    equals: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    n: tl.tensor,
    CLEAR: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    magnitude, limit = magnitudes(x, i, n), tl.load(least)
    equal = magnitude == limit
    first = tl.load(equals + tl.program_id(0)) + rank(equal) < tl.load(ties)
    kept = (magnitude > limit) | (equal & first)
    place = tl.load(starts + tl.program_id(0)) + rank(kept)
    tl.store(values + place, tl.load(x + i, mask=kept), mask=kept)
    tl.store(indices + place, i.to(tl.int16), mask=kept)
    if CLEAR:
        tl.store(x + i, tl.zeros((PART,), tl.float32), mask=kept)


def write_largest(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor, clear: bool) -> None:
    """Write the largest magnitudes, as many as there is room for, and where they are; ``clear`` makes them 0 in x."""
    n = x.numel()
    parts = triton.cdiv(n, PART)
    least, ties = least_of(x, values.numel())
    larger, equal = torch.empty(2, parts, dtype=torch.int32, device=x.device)
    launch(_count, (parts,), x, least, larger, equal, n, PART=PART)
    equals = before(equal)
    starts = before(larger) + torch.minimum(equals, ties)
    launch(_write, (parts,), x, least, ties, starts, equals, values, indices, n, CLEAR=clear, PART=PART)
    write_counts(larger.cumsum(0) + torch.minimum(equal.cumsum(0), ties), counts)
