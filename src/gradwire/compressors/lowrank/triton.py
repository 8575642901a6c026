"""Operations on the thin factors of matrices on a GPU, as ``ops`` defines them; the products are those of a BLAS.

A factor is small, and a launch takes longer than all that is done to it: so one program works on a row, or on all rows
where each depends on those before it.
"""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.tile import number

__all__ = ["lowrank_keep", "lowrank_near_one", "lowrank_orthonormal"]

_MAGNITUDE, _INFINITE = tl.constexpr(0x7FFFFFFF), tl.constexpr(0x7F800000)
_TINY = tl.constexpr(2.0**-126)
_LANES = 4096
_HALVINGS = tl.constexpr(12)


@triton.jit
def _peak(row, size, BLOCK: tl.constexpr):
    """The largest magnitude of a row, as the integer of its bits."""
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        bits = tl.load(row + i, mask=i < size, other=0.0).to(tl.int32, bitcast=True)
        found = tl.maximum(found, bits & _MAGNITUDE)
    return tl.max(found, axis=0)


@triton.jit
def _near_one(x, out, size, BLOCK: tl.constexpr, program=None):
    first = number(program) * size
    exponent = tl.minimum(tl.maximum((_peak(x + first, size, BLOCK) >> 23) - 127, -126), 126)
    factor = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + first + i, tl.load(x + first + i, mask=i < size) * factor, mask=i < size)


def lowrank_near_one(x: Tensor, out: Tensor, rank: int) -> None:
    launch(_near_one, (rank if x.numel() else 0,), x, out, x.numel() // rank, BLOCK=BLOCK)


@triton.jit
def _keep(x, warm, size, BLOCK: tl.constexpr, program=None):
    first = number(program) * size
    peak = _peak(x + first, size, BLOCK)
    kept = tl.where((peak > 0) & (peak < _INFINITE), size, 0)
    for start in range(0, kept, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(warm + first + i, tl.load(x + first + i, mask=i < kept), mask=i < kept)


def lowrank_keep(x: Tensor, warm: Tensor, rank: int) -> None:
    launch(_keep, (rank if x.numel() else 0,), x, warm, x.numel() // rank, BLOCK=BLOCK)


@triton.jit
def _dot(x, y, size, LANES: tl.constexpr):
    """Compute the sum of the products of two rows, in the order of the reference."""
    # Threads read here what other threads may have written.
    tl.debug_barrier()
    total = tl.zeros((LANES,), tl.float32)
    for start in range(0, size, LANES):
        i = start + tl.arange(0, LANES)
        total += tl.load(x + i, mask=i < size, other=0.0) * tl.load(y + i, mask=i < size, other=0.0)
    for step in tl.static_range(_HALVINGS):
        total = tl.sum(tl.reshape(total, (2, LANES >> (step + 1))), axis=0)
    return tl.sum(total, axis=0)


@triton.jit
def _orthonormal(rows, size, rank, LANES: tl.constexpr, program=None):  # noqa: ARG001
    for j in range(rank):
        row = rows + j * size
        peak = _peak(row, size, LANES).to(tl.float32, bitcast=True)
        divisor = tl.where(peak < _TINY, _TINY, peak)
        for start in range(0, size, LANES):
            i = start + tl.arange(0, LANES)
            tl.store(row + i, tl.div_rn(tl.load(row + i, mask=i < size), divisor), mask=i < size)
        once, twice = peak, peak
        for turn in range(2):
            for k in range(j):
                other = rows + k * size
                share = _dot(row, other, size, LANES)
                for start in range(0, size, LANES):
                    i = start + tl.arange(0, LANES)
                    less = tl.load(other + i, mask=i < size) * share
                    tl.store(row + i, tl.load(row + i, mask=i < size) - less, mask=i < size)
            twice = tl.sqrt_rn(_dot(row, row, size, LANES))
            once = tl.where(turn == 0, twice, once)
        for start in range(0, size, LANES):
            i = start + tl.arange(0, LANES)
            unit = tl.div_rn(tl.load(row + i, mask=i < size), twice)
            tl.store(row + i, tl.where(twice <= 0.5 * once, 0.0, unit), mask=i < size)


def lowrank_orthonormal(rows: Tensor, rank: int) -> None:
    launch(_orthonormal, (1 if rows.numel() else 0,), rows, rows.numel() // rank, rank, LANES=_LANES)
