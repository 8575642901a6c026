"""Rotated blocks and waves of tiles on a GPU.

A program rotates one block in its registers, with a fixed number of stages, of which a short block skips the first.
Sums of a block have the order of a kernel with 16 lanes, in which no reduction of a GPU adds: what was rotated goes
through memory, and another launch adds it up, 16 coordinates after the other, several blocks in a program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.compressors.transforms import _eden
from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.kernel_launch import launch, scratch
from gradwire.kernels.triton.lengths import exponent_of, power_of_two
from gradwire.kernels.triton.philox import philox_words
from gradwire.kernels.triton.signs import total_of_16
from gradwire.kernels.triton.tile import blocks, number

__all__ = [
    "eden_add_decoded",
    "eden_encode",
]

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_TINY = tl.constexpr(2.0**-120)
_ONE = tl.constexpr(254 << 23)  # less the bits of a power of two: those of its inverse
_SPARE = tl.constexpr(_eden.SPARE)
_SMALLEST = tl.constexpr(_eden.SMALLEST)
_CODES = tl.constexpr(128)  # of groups, without the sign of the whole
_ROWS = 8  # blocks that a program adds up


def _warps(block: int) -> int:
    """Warps for a program that rotates a block: 16 elements for each of their threads."""
    return min(16, max(1, block // 512))


@triton.jit
def _stage(y, size, LENGTH: tl.constexpr, HALF: tl.constexpr):
    """Sums and differences of pairs at distance ``HALF``, in runs that are longer than that."""
    low, high = tl.split(tl.permute(tl.reshape(y, (LENGTH // HALF // 2, 2, HALF)), (0, 2, 1)))
    both = tl.permute(tl.join(low + high, low - high), (0, 2, 1))
    return tl.where(size > HALF, tl.reshape(both, (LENGTH,)), y)


@triton.jit
def _hadamard(y, size, LENGTH: tl.constexpr, STAGES: tl.constexpr):
    """Compute H y of each run of ``size`` coordinates, at most 2**STAGES."""
    for stage in tl.static_range(STAGES):
        y = _stage(y, size, LENGTH, 1 << (STAGES - 1 - stage))
    return y


@triton.jit
def _signs(begin, key, step, LENGTH: tl.constexpr):
    """The bits of a stream of signs for the elements from ``begin`` on, a multiple of 16: 1 changes the sign."""
    half = begin // 16 + tl.arange(0, LENGTH // 16)
    word = half // 2
    word0, word1, word2, word3 = philox_words(word // 4, key, step)
    low = tl.where(word % 2 == 0, word0, word1)
    high = tl.where(word % 2 == 0, word2, word3)
    drawn = tl.where(word % 4 < 2, low, high) >> (half % 2 * 16).to(tl.uint32)
    return tl.reshape((drawn[:, None] >> tl.arange(0, 16).to(tl.uint32)[None, :]) & 1, (LENGTH,))


@triton.jit
def _turned(y, signs):
    """Change signs, also that of a zero, which Triton's own minus would lose."""
    return (y.to(tl.uint32, bitcast=True) ^ (signs << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _places(block, n, sent, LENGTH: tl.constexpr, STEP: tl.constexpr, DOUBLINGS: tl.constexpr):
    """The first element of EDEN's blocks, their sizes, how many coordinates of each are sent, and the first code."""
    total = block * 0 + n
    full = total // LENGTH
    whole = tl.minimum(block, full)
    begin, size = whole * LENGTH, block * 0 + LENGTH
    kept, code = block * 0 + sent, whole * sent
    at, first, rest = full * LENGTH, full * sent, total - full * LENGTH
    for after in tl.static_range(DOUBLINGS + 1):
        padded = block * 0 + _SMALLEST
        for _ in tl.static_range(DOUBLINGS):
            padded = tl.where(padded < rest, padded * 2, padded)
        part = tl.where(padded - rest <= _SPARE, padded, padded // 2)
        sends = (part * sent + (LENGTH * STEP - 1)) // (LENGTH * STEP) * STEP
        here = block - full == after
        begin, size = tl.where(here, at, begin), tl.where(here, part, size)
        kept, code = tl.where(here, sends, kept), tl.where(here, first, code)
        at, first, rest = at + part, first + sends, rest - part
    return begin, size, kept, code


@triton.jit
def _nearest_words(y, words, size, LENGTH: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr):
    """The code of each group, the first of those with the largest product, and that product."""
    place = tl.arange(0, LENGTH) % GROUP
    largest = tl.full((LENGTH,), -1.0, tl.float32)
    products = tl.zeros((LENGTH,), tl.float32)
    form = tl.zeros((LENGTH,), tl.int32)
    for first in range(0, _CODES, GROUP):
        turned = _hadamard(y * tl.load(words + first * GROUP + place), size, LENGTH, STAGES)
        better = tl.abs(turned) > largest
        largest = tl.where(better, tl.abs(turned), largest)
        products = tl.where(better, turned, products)
        form = tl.where(better, first, form)
    magnitudes = tl.reshape(largest, (LENGTH // GROUP, GROUP))
    found = tl.reshape(form + place, (LENGTH // GROUP, GROUP))
    best = tl.max(magnitudes, axis=1)
    word = tl.min(tl.where(magnitudes == best[:, None], found, _CODES), axis=1)
    # One element is not zero: this sum has no order.
    product = tl.sum(tl.where(found == word[:, None], tl.reshape(products, (LENGTH // GROUP, GROUP)), 0.0), axis=1)
    return tl.where(product < 0.0, word + _CODES, word), best


@triton.jit
def _eden_rotate(
    x,
    seed,
    rotated,
    largest,
    codes,
    products,
    words,
    n,
    sent,
    LENGTH: tl.constexpr,
    STEP: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    program=None,
):
    """Rotate a block in units of its largest element, for ``_eden_round``; of groups also choose the words."""
    block = number(program)
    begin, size, kept, code = _places(block, n, sent, LENGTH, STEP, DOUBLINGS)
    j = tl.arange(0, LENGTH)
    values = tl.load(x + begin + j, mask=(j < size) & (begin + j < n), other=0.0)
    magnitude = tl.max(values.to(tl.int32, bitcast=True) & _MAGNITUDE)
    tl.store(largest + block, magnitude)
    key = tl.load(seed).to(tl.int64) & 0xFFFFFFFF
    first = _signs(begin, key, 0, LENGTH)
    y = _turned(values * power_of_two(-exponent_of(magnitude)), first)
    y = _turned(_hadamard(y, size, LENGTH, DOUBLINGS + 6), _signs(begin, key, 1, LENGTH))
    y = _hadamard(y, size, LENGTH, DOUBLINGS + 6)
    if GROUP > 1:
        y = _turned(y, first)
    y = tl.where(_usable(magnitude), y, 0.0)
    tl.store(rotated + begin + j, y, mask=j < kept)
    if GROUP > 1:
        word, product = _nearest_words(y, words, size, LENGTH, GROUP, STAGES)
        group = tl.arange(0, LENGTH // GROUP)
        tl.store(codes + code // GROUP + group, word.to(tl.uint8), mask=group * GROUP < kept)
        tl.store(products + code // GROUP + group, product, mask=group * GROUP < kept)


@triton.jit
def _usable(magnitude):
    """Return whether a block can be scaled: its largest element is finite and not tiny."""
    largest = magnitude.to(tl.float32, bitcast=True)
    return (largest >= _TINY) & (largest < float("inf"))


@triton.jit
def _store_scales(scales, block, count, magnitude, squares, products, kept):
    ratio = tl.div_rn(squares, tl.where(products == 0.0, float("inf"), products))
    scale = tl.div_rn(ratio, kept.to(tl.float32)) * power_of_two(exponent_of(magnitude))
    finite = magnitude.to(tl.float32, bitcast=True) < float("inf")
    scale = tl.where(_usable(magnitude), scale, tl.where(finite, 0.0, float("nan")))
    tl.store(scales + block, scale, mask=block < count)


@triton.jit
def _squares(y, begin, kept, sent, ROWS: tl.constexpr):
    """Add the squares of what is sent of each block, 16 coordinates after the other."""
    lane = tl.arange(0, 16)[None, :]
    sums = tl.zeros((ROWS, 16), tl.float32)
    for start in range(0, sent, 16):
        found = tl.load(y + begin[:, None] + start + lane, mask=start < kept[:, None], other=0.0)
        sums += found * found
    return total_of_16(sums, ROWS)


@triton.jit
def _rotated(block, largest, n, count, sent, LENGTH: tl.constexpr, STEP: tl.constexpr, DOUBLINGS: tl.constexpr):
    """Find blocks that were rotated: their first elements, the coordinates that are sent, the first of their codes, and
    their largest elements. A block beyond the last one sends nothing.
    """
    begin, _, kept, code = _places(block, n, sent, LENGTH, STEP, DOUBLINGS)
    kept = tl.where(block < count, kept, 0)
    return begin, kept, code, tl.load(largest + block, mask=block < count, other=0)


@triton.jit
def _eden_round(
    rotated,
    largest,
    scales,
    codes,
    table,
    n,
    count,
    sent,
    LENGTH: tl.constexpr,
    STEP: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    begin, kept, code, magnitude = _rotated(block, largest, n, count, sent, LENGTH, STEP, DOUBLINGS)
    squares = _squares(rotated, begin, kept, sent, ROWS)
    root = tl.sqrt_rn(tl.div_rn(squares, tl.maximum(kept, 1).to(tl.float32)))
    usable = _usable(magnitude)[:, None]
    lane, slot = tl.arange(0, 16)[None, :], tl.arange(0, 8)[None, :]
    sums = tl.zeros((ROWS, 16), tl.float32)
    for start in range(0, sent, 16):
        inside = start < kept[:, None]
        y = tl.load(rotated + begin[:, None] + start + lane, mask=inside, other=0.0)
        level = tl.zeros((ROWS, 16), tl.int64)
        value = tl.zeros((ROWS, 16), tl.float32) + tl.load(table)
        for above in tl.static_range(1, 1 << (BITS - 1)):
            beyond = tl.abs(y) >= (root * tl.load(table + (1 << BITS) + above - 1))[:, None]
            level += beyond.to(tl.int64)
            value = tl.where(beyond, tl.load(table + above), value)
        sums += tl.abs(y) * value
        level = tl.where(usable, level + tl.where(y < 0.0, 1 << (BITS - 1), 0), 0)
        word = tl.sum(level << (lane * BITS), axis=1)
        at = codes + ((code + start) // 8 * BITS)[:, None] + slot
        tl.store(at, (word[:, None] >> (slot * 8)).to(tl.uint8), mask=inside & (slot < 2 * BITS))
    _store_scales(scales, block, count, magnitude, squares, total_of_16(sums, ROWS), tl.maximum(kept, 1))


@triton.jit
def _eden_scale(
    rotated,
    largest,
    products,
    scales,
    n,
    count,
    sent,
    LENGTH: tl.constexpr,
    STEP: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    """Compute the scales of blocks whose groups have their words."""
    block = blocks(ROWS, program)
    begin, kept, code, magnitude = _rotated(block, largest, n, count, sent, LENGTH, STEP, DOUBLINGS)
    sums = tl.zeros((ROWS, 16), tl.float32)
    for start in range(0, sent // GROUP, 16):
        group = start + tl.arange(0, 16)[None, :]
        sums += tl.load(products + (code // GROUP)[:, None] + group, mask=group * GROUP < kept[:, None], other=0.0)
    squares = _squares(rotated, begin, kept, sent, ROWS)
    _store_scales(scales, block, count, magnitude, squares, total_of_16(sums, ROWS), tl.maximum(kept, 1))


def _eden_form(block: int, group: int) -> dict[str, int]:
    step = max(_eden.STEP, group)
    return {"LENGTH": block, "STEP": step, "DOUBLINGS": (block // _eden.SMALLEST).bit_length() - 1}


def eden_encode(
    x: Tensor, seed: Tensor, scales: Tensor, codes: Tensor, block: int, bits: int, sent: int, group: int = 1
) -> None:
    n, count, form = x.numel(), scales.numel(), _eden_form(block, group)
    table = _eden.lookup(bits, group, x.device)
    rotated, largest = scratch(n + _eden.SPARE, torch.float32, x), scratch(count, torch.int32, x)
    products = scratch(codes.numel() if group > 1 else 0, torch.float32, x)
    tensors = x, seed, rotated, largest, codes, products, table
    groups = {"GROUP": group, "STAGES": group.bit_length() - 1}
    launch(_eden_rotate, (count,), *tensors, n, sent, **form, **groups, num_warps=_warps(block))
    programs = (triton.cdiv(count, _ROWS),)
    if group == 1:
        numbers = n, count, sent
        launch(_eden_round, programs, rotated, largest, scales, codes, table, *numbers, **form, BITS=bits, ROWS=_ROWS)
    else:
        numbers = n, count, sent
        launch(_eden_scale, programs, rotated, largest, products, scales, *numbers, **form, GROUP=group, ROWS=_ROWS)


@triton.jit
def _eden_values(codes, table, code, kept, LENGTH: tl.constexpr, BITS: tl.constexpr):
    """Decode single coordinates."""
    j = tl.arange(0, LENGTH)
    at, shift = codes + code // 8 * BITS + j * BITS // 8, j * BITS % 8
    raw = tl.load(at, mask=j < kept, other=0).to(tl.int32)
    if BITS == 3:
        raw |= tl.load(at + 1, mask=(j < kept) & (shift > 8 - BITS), other=0).to(tl.int32) << 8
    return tl.load(table + ((raw >> shift) & ((1 << BITS) - 1)))


@triton.jit
def _eden_words(codes, table, code, kept, LENGTH: tl.constexpr, GROUP: tl.constexpr):
    """Decode groups."""
    j = tl.arange(0, LENGTH)
    raw = tl.load(codes + code // GROUP + j // GROUP, mask=j < kept, other=0).to(tl.int32)
    value = tl.load(table + raw % _CODES * GROUP + j % GROUP)
    return tl.where(raw >= _CODES, -value, value)


@triton.jit
def _eden_add(
    seed,
    seed_stride,
    scales,
    scale_stride,
    codes,
    code_stride,
    ranks,
    out,
    table,
    n,
    sent,
    scale: tl.float32,
    LENGTH: tl.constexpr,
    STEP: tl.constexpr,
    DOUBLINGS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    program=None,
):
    block = number(program)
    begin, size, kept, code = _places(block, n, sent, LENGTH, STEP, DOUBLINGS)
    inverse = (-size.to(tl.float32).to(tl.int32, bitcast=True) + _ONE).to(tl.float32, bitcast=True)
    j = tl.arange(0, LENGTH)
    inside = (j < size) & (begin + j < n)
    total = tl.load(out + begin + j, mask=inside, other=0.0)
    for _ in range(ranks):
        key = tl.load(seed).to(tl.int64) & 0xFFFFFFFF
        first = _signs(begin, key, 0, LENGTH)
        if GROUP == 1:
            y = _eden_values(codes, table, code, kept, LENGTH, BITS)
        else:
            y = _eden_words(codes, table, code, kept, LENGTH, GROUP)
        y = tl.where(j < kept, y * (tl.load(scales + block) * inverse), 0.0)
        if GROUP > 1:
            y = _turned(y, first)
        y = _turned(_hadamard(y, size, LENGTH, DOUBLINGS + 6), _signs(begin, key, 1, LENGTH))
        total += _turned(_hadamard(y, size, LENGTH, DOUBLINGS + 6), first) * scale
        seed += seed_stride
        scales += scale_stride
        codes += code_stride
    tl.store(out + begin + j, total, mask=inside)


def eden_add_decoded(
    seed: Tensor,
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    block: int,
    bits: int,
    sent: int,
    scale: float,
    group: int = 1,
) -> None:
    rows = seed, seed.stride(0), scales, scales.stride(0), codes, codes.stride(0), codes.size(0)
    numbers = out.numel(), sent, float32(scale)
    form = {**_eden_form(block, group), "BITS": bits, "GROUP": group, "num_warps": _warps(block)}
    launch(_eden_add, (scales.size(1),), *rows, out, _eden.lookup(bits, group, out.device), *numbers, **form)
