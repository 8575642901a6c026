"""Signs, signs with the means of their block, and 1-bit codes on a GPU.

A tile of blocks is (blocks, 32 lanes). Sums run along a block tile by tile, so every lane adds in the order of the
reference.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.float32 import float32
from gradwire.kernels.sums import SUM_BLOCK, mean_of_sums
from gradwire.kernels.triton.codes import pack, places, unpack
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.signs import ROWS, pack_signs, total_of_32, unpack_signs
from gradwire.kernels.triton.status import compensate, flag_nonfinite
from gradwire.kernels.triton.tile import begin_sum_at, blocks, elements

__all__ = [
    "mean_magnitude",
    "onebit_add_decoded",
    "onebit_encode",
    "onebit_encode_feedback",
    "scaled_sign_add_decoded",
    "scaled_sign_encode",
    "scaled_sign_encode_feedback",
    "sign_add_decoded",
    "sign_encode",
    "sign_encode_feedback",
    "sign_vote",
    "two_means_add_decoded",
    "two_means_encode",
    "two_means_encode_feedback",
]

BYTES = BLOCK // 8
LANES = 32

_LANES = tl.constexpr(LANES)
_TIE = tl.constexpr(2.0**-12)


def _grid(size: int) -> tuple[int]:
    """The grid with a program for every ``BYTES`` bytes of codes."""
    return (triton.cdiv(size, BYTES),)


def _grid_of_blocks(count: int) -> tuple[int]:
    """The grid with a program for every ``ROWS`` blocks."""
    return (triton.cdiv(count, ROWS),)


@triton.jit
def _sign(x, residual, codes, status, n, size, BYTES: tl.constexpr, program=None):
    byte, i = places(BYTES, 1, program)
    value = compensate(x, residual, status, i, n)
    positive = value >= 0.0
    tl.store(codes + byte, pack_signs(positive & (i < n)), mask=byte < size)
    if residual is not None:
        tl.store(residual + i, tl.where(positive, value - 1.0, value + 1.0), mask=i < n)


def sign_encode(x: Tensor, codes: Tensor) -> None:
    sign_encode_feedback(x, None, codes)


def sign_encode_feedback(grad: Tensor, residual: Tensor | None, codes: Tensor, status: Tensor | None = None) -> None:
    n, size = grad.numel(), codes.numel()
    launch(_sign, _grid(size), grad, residual, codes, status, n, size, BYTES=BYTES)


@triton.jit
def _add_signs(
    codes, stride, ranks, out, n, size, scale: tl.float32, FRESH: tl.constexpr, BYTES: tl.constexpr, program=None
):
    byte, i = places(BYTES, 1, program)
    inside = i < n
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        positive = unpack_signs(tl.load(codes + byte, mask=byte < size))
        # Not plus a negated scale: Triton negates by subtracting from 0, which loses the sign of a zero.
        total = tl.where(positive, total + scale, total - scale)
        codes += stride
    tl.store(out + i, total, mask=inside)


def sign_add_decoded(codes: Tensor, out: Tensor, scale: float, fresh: bool = False) -> None:
    ranks, size = codes.shape
    rows = codes, codes.stride(0), ranks
    launch(_add_signs, _grid(size), *rows, out, out.numel(), size, float32(scale), FRESH=fresh, BYTES=BYTES)


@triton.jit
def _vote(mean, n, tie: tl.float32, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    x = tl.load(mean + i, mask=inside)
    decided = tl.where(x > _TIE, 1.0, tl.where(x < -_TIE, -1.0, tie))
    tl.store(mean + i, tl.where(x == x, decided, x), mask=inside)


def sign_vote(mean: Tensor, tie: float) -> None:
    n = mean.numel()
    launch(_vote, (triton.cdiv(n, BLOCK),), mean, n, float(tie), BLOCK=BLOCK)


@triton.jit
def _lanes(block, start, SIZE: tl.constexpr):
    """The indices of the 32 elements from ``start`` on in each block: (ROWS, 32)."""
    return (block * SIZE + start)[:, None] + tl.arange(0, _LANES)[None, :]


@triton.jit
def _count_of(block, n, SIZE: tl.constexpr):
    """The number of elements of each block; 1 beyond the last one, so that it can be a divisor."""
    return tl.maximum(tl.minimum(n - block * SIZE, SIZE), 1)


@triton.jit
def _store_signs(positive, block, start, codes, size, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """Write the four bytes of each row of 32 truth values."""
    bits = tl.reshape(positive.to(tl.int32), (ROWS, 4, 8)) << tl.arange(0, 8)[None, None, :]
    byte = ((block * SIZE + start) // 8)[:, None] + tl.arange(0, 4)[None, :]
    tl.store(codes + byte, tl.sum(bits, axis=2).to(tl.uint8), mask=byte < size)


@triton.jit
def _sum_at(grad, residual, i, n):
    """The old residual and the elements to encode at ``i``, 0 from n on; without a residual both are the gradient."""
    old = tl.load(grad + i, mask=i < n, other=0.0)
    x = old
    if residual is not None:
        old = tl.load(residual + i, mask=i < n, other=0.0)
        x = old + x
    return old, x


@triton.jit
def _keep(grad, residual, codes, status, block, low, high, n, size, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Write the signs of residual + grad, and keep what is left of it without the level of its sign in its block."""
    for start in range(0, SIZE, _LANES):
        i = _lanes(block, start, SIZE)
        old, x = _sum_at(grad, residual, i, n)
        _store_signs((x >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        tl.store(residual + i, x - tl.where(x >= 0.0, high[:, None], low[:, None]), mask=i < n)
        if status is not None:
            tl.store(grad + i, old, mask=i < n)


@triton.jit
def _scaled(
    grad,
    residual,
    scales,
    codes,
    status,
    n,
    count,
    size,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(0, SIZE, LANES):
        i = _lanes(block, start, SIZE)
        _, x = _sum_at(grad, residual, i, n)
        if residual is None:
            # Without a residual nothing waits for the scale, and one pass does.
            _store_signs((x >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        lanes += tl.abs(x)
    scale = tl.div_rn(total_of_32(lanes, ROWS), _count_of(block, n, SIZE).to(tl.float32))
    tl.store(scales + block, scale, mask=block < count)
    if status is not None:
        flag_nonfinite(scale, status)
    if residual is not None:
        _keep(grad, residual, codes, status, block, -scale, scale, n, size, SIZE, ROWS)


def scaled_sign_encode(x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    scaled_sign_encode_feedback(x, None, scales, codes, block)


def scaled_sign_encode_feedback(
    grad: Tensor, residual: Tensor | None, scales: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    count, tensors = scales.numel(), (grad, residual, scales, codes, status)
    sizes = grad.numel(), count, codes.numel()
    launch(_scaled, _grid_of_blocks(count), *tensors, *sizes, SIZE=block, LANES=LANES, ROWS=ROWS)


@triton.jit
def _add_levels(
    numbers,
    numbers_stride,
    codes,
    codes_stride,
    ranks,
    out,
    n,
    size,
    scale: tl.float32,
    TWO: tl.constexpr,
    FRESH: tl.constexpr,
    SIZE: tl.constexpr,
    BYTES: tl.constexpr,
    program=None,
):
    """Add the level of each sign in its block: one number, or its negative; or the second and the first of ``TWO``."""
    byte, i = places(BYTES, 1, program)
    block = byte // (SIZE // 8)
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        positive = unpack_signs(tl.load(codes + byte, mask=byte < size, other=0))
        if TWO:
            low = tl.load(numbers + 2 * block, mask=byte < size, other=0.0) * scale
            high = tl.load(numbers + 2 * block + 1, mask=byte < size, other=0.0) * scale
            total += tl.where(positive, high[:, None], low[:, None])
        else:
            level = tl.load(numbers + block, mask=byte < size, other=0.0) * scale
            # Not plus a negated level: Triton negates by subtracting from 0, which loses the sign of a zero.
            total = tl.where(positive, total + level[:, None], total - level[:, None])
        numbers += numbers_stride
        codes += codes_stride
    tl.store(out + i, total, mask=i < n)


def _add_numbers(
    numbers: Tensor, codes: Tensor, out: Tensor, block: int, scale: float, fresh: bool, *, two: bool
) -> None:
    ranks, size = codes.shape
    rows = numbers, numbers.stride(0), codes, codes.stride(0), ranks
    form = {"TWO": two, "FRESH": fresh, "SIZE": block, "BYTES": BYTES}
    launch(_add_levels, _grid(size), *rows, out, out.numel(), size, float32(scale), **form)


def scaled_sign_add_decoded(
    scales: Tensor, codes: Tensor, out: Tensor, block: int, scale: float, fresh: bool = False
) -> None:
    _add_numbers(scales, codes, out, block, scale, fresh, two=False)


@triton.jit
def _add_sides(x, inside, low, high, above):
    """Add a tile to the sums below zero and of the rest, and to the count of the rest."""
    positive = x >= 0.0
    count = tl.sum((positive & inside).to(tl.int32), axis=1)
    return low + tl.where(positive, 0.0, x), high + tl.where(positive, x, 0.0), above + count


@triton.jit
def _means_of(low, high, above, count, ROWS: tl.constexpr):
    """The mean of each side; 0 for no elements."""
    below = count - above
    mu0 = tl.div_rn(total_of_32(low, ROWS), tl.maximum(below, 1).to(tl.float32))
    mu1 = tl.div_rn(total_of_32(high, ROWS), tl.maximum(above, 1).to(tl.float32))
    return tl.where(below > 0, mu0, 0.0), tl.where(above > 0, mu1, 0.0)


@triton.jit
def _two_means(
    grad,
    residual,
    means,
    codes,
    status,
    n,
    count,
    size,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    low, high = tl.zeros((ROWS, LANES), tl.float32), tl.zeros((ROWS, LANES), tl.float32)
    above = tl.zeros((ROWS,), tl.int32)
    for start in range(0, SIZE, LANES):
        i = _lanes(block, start, SIZE)
        _, x = _sum_at(grad, residual, i, n)
        if residual is None:
            _store_signs((x >= 0.0) & (i < n), block, start, codes, size, ROWS, SIZE)
        low, high, above = _add_sides(x, i < n, low, high, above)
    mu0, mu1 = _means_of(low, high, above, _count_of(block, n, SIZE), ROWS)
    tl.store(means + 2 * block, mu0, mask=block < count)
    tl.store(means + 2 * block + 1, mu1, mask=block < count)
    if status is not None:
        flag_nonfinite(mu0, status)
        flag_nonfinite(mu1, status)
    if residual is not None:
        _keep(grad, residual, codes, status, block, mu0, mu1, n, size, SIZE, ROWS)


def two_means_encode(x: Tensor, means: Tensor, codes: Tensor, block: int) -> None:
    two_means_encode_feedback(x, None, means, codes, block)


def two_means_encode_feedback(
    grad: Tensor, residual: Tensor | None, means: Tensor, codes: Tensor, block: int, status: Tensor | None = None
) -> None:
    count, tensors = means.numel() // 2, (grad, residual, means, codes, status)
    sizes = grad.numel(), count, codes.numel()
    launch(_two_means, _grid_of_blocks(count), *tensors, *sizes, SIZE=block, LANES=LANES, ROWS=ROWS)


def two_means_add_decoded(
    means: Tensor, codes: Tensor, out: Tensor, block: int, scale: float, fresh: bool = False
) -> None:
    _add_numbers(means, codes, out, block, scale, fresh, two=True)


@triton.jit
def _onebit(x, residual, codes, status, step, n, size, threshold: tl.float32, BYTES: tl.constexpr, program=None):
    byte, i = places(BYTES, 1, program)
    inside = i < n
    distance = 1.0
    if step is not None:
        distance = tl.load(step)
    if residual is None:
        above = tl.load(x + i, mask=inside, other=0.0) > distance * threshold
    else:
        old = tl.load(residual + i, mask=inside, other=0.0)
        total = old + tl.load(x + i, mask=inside, other=0.0)
        above = total > distance * threshold
        rest = tl.where(above, total - distance, total + distance)
        if status is not None:
            tl.store(x + i, old, mask=inside)
            flag_nonfinite(tl.where(inside, rest, 0.0), status)
        tl.store(residual + i, rest, mask=inside)
    tl.store(codes + byte, pack((above & inside).to(tl.int32), 1), mask=byte < size)


def onebit_encode(x: Tensor, codes: Tensor, threshold: float, step: Tensor | None = None) -> None:
    onebit_encode_feedback(x, None, codes, threshold, None, step)


def onebit_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    codes: Tensor,
    threshold: float,
    status: Tensor | None = None,
    step: Tensor | None = None,
) -> None:
    n, size, tensors = grad.numel(), codes.numel(), (grad, residual, codes, status, step)
    launch(_onebit, _grid(size), *tensors, n, size, float32(threshold), BYTES=BYTES)


@triton.jit
def _add_onebit(
    codes,
    stride,
    steps,
    steps_stride,
    ranks,
    out,
    n,
    size,
    scale: tl.float32,
    FRESH: tl.constexpr,
    BYTES: tl.constexpr,
    program=None,
):
    byte, i = places(BYTES, 1, program)
    inside = i < n
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        bit = unpack(tl.load(codes + byte, mask=byte < size), 1)
        distance = scale
        if steps is not None:
            distance = tl.load(steps) * scale
            steps += steps_stride
        # Not plus a negated distance: Triton negates by subtracting from 0, which loses the sign of a zero.
        total = tl.where(bit != 0, total + distance, total - distance)
        codes += stride
    tl.store(out + i, total, mask=inside)


def onebit_add_decoded(
    codes: Tensor, out: Tensor, scale: float, steps: Tensor | None = None, fresh: bool = False
) -> None:
    ranks, size = codes.shape
    rows = codes, codes.stride(0), steps, 0 if steps is None else steps.stride(0), ranks
    launch(_add_onebit, _grid(size), *rows, out, out.numel(), size, float32(scale), FRESH=fresh, BYTES=BYTES)


@triton.jit
def _magnitudes(x, residual, sums, n, count, SIZE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr):
    block = blocks(ROWS)
    lanes = tl.zeros((ROWS, LANES), tl.float32)
    for start in range(0, SIZE, LANES):
        i = _lanes(block, start, SIZE)
        _, value = _sum_at(x, residual, i, n)
        lanes += tl.abs(value)
    tl.store(sums + block, total_of_32(lanes, ROWS), mask=block < count)


def mean_magnitude(x: Tensor, mean: Tensor, residual: Tensor | None = None) -> None:
    n, count = x.numel(), triton.cdiv(x.numel(), SUM_BLOCK)
    sums = torch.empty(count, dtype=torch.float32, device=x.device)
    launch(_magnitudes, _grid_of_blocks(count), x, residual, sums, n, count, SIZE=SUM_BLOCK, LANES=LANES, ROWS=ROWS)
    mean.copy_(mean_of_sums(sums, n))
