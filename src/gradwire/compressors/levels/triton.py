"""Levels and powers of two on a GPU. The norm "l2" of blocks, whose sums have a fixed order, is measured in a launch of
its own, and so are the moments of the whole tensor.

A group of 8 elements has one Philox counter, or two where an element takes a whole word.
"""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.compressors.levels.ops import LARGEST_BLOCK, SEGMENT, top_of
from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.lengths import write_lengths
from gradwire.kernels.triton.levels import elements, groups, largest, load, norm_of, store, tile, with_residual
from gradwire.kernels.triton.moments import write_moments, write_norm
from gradwire.kernels.triton.philox import philox_words
from gradwire.kernels.triton.status import flag_nonfinite
from gradwire.kernels.triton.stored import code_scale, write_rows
from gradwire.kernels.triton.tile import begin_sum_at, blocks, number

__all__ = [
    "loco_encode",
    "loco_encode_averaged",
    "moments",
    "moments_feedback",
    "moments_norm",
    "natural_add_decoded",
    "natural_encode",
    "natural_encode_feedback",
    "qsgd_add_decoded",
    "qsgd_encode",
    "qsgd_encode_feedback",
    "round_encode",
    "round_keep",
]

_UNIT = tl.constexpr(2.0**-16)
_SIGN = tl.constexpr(-0x80000000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FRACTION = tl.constexpr(0x7FFFFF)
_MIDDLE = tl.constexpr(12582912.0)
ROUND_GROUPS = BLOCK // 8
"""Elements that a program rounds with one norm."""


@triton.jit
def _top(norm, TOP: tl.constexpr):
    """The highest level, once for each block."""
    return tl.full(norm.shape, TOP, tl.float32)


@triton.jit
def _step_of(norm, TOP: tl.constexpr, POWERS: tl.constexpr = False):
    """The unit of the levels' values in each block: the distance between neighbours, or the norm."""
    return norm if POWERS else tl.div_rn(norm, _top(norm, TOP))


@triton.jit
def _value_of_level(q, TOP: tl.constexpr, POWERS: tl.constexpr):
    """The values of levels in that unit, as float32."""
    if POWERS:
        size = tl.abs(q)
        value = (size + (127 - TOP) << 23).to(tl.float32, bitcast=True)
        return tl.where(size == 0, 0.0, tl.where(q < 0, -value, value))
    return q.to(tl.float32)


@triton.jit
def _level_of(share, shift, TOP: tl.constexpr, POWERS: tl.constexpr):
    """Round to a level at random: a multiple of the step, or of powers of two the one below or above."""
    if POWERS:
        scaled = share * tl.full((1, 1, 1), (TOP + 126) << 23, tl.int32).to(tl.float32, bitcast=True)
        word = scaled.to(tl.int32, bitcast=True)
        large = word >= 0x3F800000
        fraction = tl.where(large, (word & _FRACTION | 0x3F800000).to(tl.float32, bitcast=True) - 1.0, scaled)
        return tl.minimum(tl.where(large, (word >> 23) - 126, 0) + (fraction + shift >= 1.0).to(tl.int32), TOP)
    # Nothing is negative here, so the conversion to an integer is the floor.
    return tl.minimum(share + shift, TOP * 1.0).to(tl.int32)


@triton.jit
def _bytes(group, size, BITS: tl.constexpr):
    """The indices of the bytes of each group, their places in its word, and a mask of those that exist."""
    slot = tl.arange(0, 2 if BITS == 2 else 4 if BITS <= 4 else 8)[None, None, :]
    byte = group[:, :, None] * BITS + slot
    return byte, slot * 8, (slot < BITS) & (byte < size)


@triton.jit
def _uniform(group, key, step):
    """16 bits of Philox for each element, as the middles of 2**16 parts of (0, 1)."""
    lane = tl.arange(0, 8)[None, None, :]
    word0, word1, word2, word3 = philox_words(group, key, step)
    low = tl.where(lane < 2, word0[:, :, None], word1[:, :, None])
    high = tl.where(lane < 6, word2[:, :, None], word3[:, :, None])
    half = tl.where(lane < 4, low, high) >> (lane % 2 * 16).to(tl.uint32)
    return ((half & 0xFFFF).to(tl.float32) + 0.5) * _UNIT


@triton.jit
def _write_levels(
    x, group, norm, codes, size, key, step, BITS: tl.constexpr, TOP: tl.constexpr, POWERS: tl.constexpr = False
):
    """Round a tile to its levels and write their codes; return the levels as int32."""
    usable = (norm > 0.0) & (norm < float("inf"))
    inverse = tl.where(usable, tl.div_rn(_top(norm, 1 if POWERS else TOP), norm), 0.0)
    level = _level_of(tl.abs(x) * inverse[:, None, None], _uniform(group, key, step), TOP, POWERS)
    q = tl.where(usable[:, None, None], tl.where(x < 0.0, -level, level), 0)
    raw = (q & ((1 << BITS) - 1)).to(tl.int64)
    word = tl.sum(raw << (tl.arange(0, 8)[None, None, :] * BITS), axis=2)
    byte, shift, inside = _bytes(group, size, BITS)
    tl.store(codes + byte, (word[:, :, None] >> shift).to(tl.uint8), mask=inside)
    return q


@triton.jit
def _read_levels(codes, group, size, BITS: tl.constexpr):
    """Read the levels of a tile, as int32."""
    byte, shift, inside = _bytes(group, size, BITS)
    parts = tl.load(codes + byte, mask=inside, other=0).to(tl.int64)
    word = tl.sum(parts << shift, axis=2)
    raw = (word[:, :, None] >> (tl.arange(0, 8)[None, None, :] * BITS)).to(tl.int32) & ((1 << BITS) - 1)
    sign = 1 << (BITS - 1)
    return (raw ^ sign) - sign


def _form(bits: int, levels: int, grid: str, norm: str) -> dict[str, int]:
    return {"BITS": bits, "TOP": top_of(bits, levels), "POWERS": grid == "powers", "MEASURED": norm == "l2"}


@triton.jit
def _keep(grad, residual, group, n, old, kept, UNDO: tl.constexpr):
    store(residual, kept, group, n)
    if UNDO:
        store(grad, old, group, n)


@triton.jit(do_not_specialize=["key", "step"])
def _qsgd(
    grad,
    residual,
    norms,
    codes,
    status,
    n,
    count,
    size,
    key: tl.int64,
    step: tl.int64,
    shrink: tl.float32,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    POWERS: tl.constexpr,
    MEASURED: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    group = groups(block, 0, GROUPS, SPAN)
    old, x = with_residual(grad, residual, group, n)
    if MEASURED:
        norm = tl.load(norms + block, mask=block < count, other=0.0)
    else:
        magnitude = largest(x)
        for start in range(SPAN, GROUPS, SPAN):
            _, more = with_residual(grad, residual, groups(block, start, GROUPS, SPAN), n)
            magnitude = tl.maximum(magnitude, largest(more))
        norm = norm_of(magnitude)
        tl.store(norms + block, norm, mask=block < count)
    if status is not None:
        flag_nonfinite(norm, status)
    distance = (_step_of(norm, TOP, POWERS) * shrink)[:, None, None]
    # The first part, all of it where blocks are short, is still in registers.
    q = _write_levels(x, group, norm, codes, size, key, step, BITS, TOP, POWERS)
    if residual is not None:
        _keep(grad, residual, group, n, old, x - distance * _value_of_level(q, TOP, POWERS), status is not None)
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        old, x = with_residual(grad, residual, group, n)
        q = _write_levels(x, group, norm, codes, size, key, step, BITS, TOP, POWERS)
        if residual is not None:
            _keep(grad, residual, group, n, old, x - distance * _value_of_level(q, TOP, POWERS), status is not None)


def qsgd_encode(
    x: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    qsgd_encode_feedback(x, None, norms, codes, bits, block, norm, key, step, levels=levels, grid=grid)


def qsgd_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    status: Tensor | None = None,
    shrink: float = 1.0,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    tensors = grad, residual, norms, codes
    n, count, size, part = grad.numel(), norms.numel(), codes.numel(), tile(block)
    form = _form(bits, levels, grid, norm) | part
    if norm == "l2":
        write_lengths(grad, residual, norms, block)
    numbers = n, count, size, key, step, float32(shrink)
    launch(_qsgd, _programs(count, part), *tensors, status, *numbers, **form)


@triton.jit
def _add(
    norms,
    norm_stride,
    codes,
    code_stride,
    ranks,
    out,
    n,
    count,
    size,
    scale: tl.float32,
    FRESH: tl.constexpr,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    POWERS: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    group = groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN)
    i = elements(group)
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        step = _step_of(tl.load(norms + block, mask=block < count, other=0.0), TOP, POWERS) * scale
        total += step[:, None, None] * _value_of_level(_read_levels(codes, group, size, BITS), TOP, POWERS)
        norms += norm_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


@triton.jit
def _add_long(
    norms,
    norm_stride,
    codes,
    code_stride,
    ranks,
    out,
    n,
    size,
    groups_of_block: tl.int64,
    scale: tl.float32,
    FRESH: tl.constexpr,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    POWERS: tl.constexpr,
    GROUPS: tl.constexpr,
    program=None,
):
    """Add to a part of a tensor whose blocks are longer than the part; each group reads the norm of its own."""
    group = (number(program) * GROUPS + tl.arange(0, GROUPS))[None, :]
    i = elements(group)
    total = begin_sum_at(out, i, n, FRESH)
    block = group // groups_of_block
    for _ in range(ranks):
        step = _step_of(tl.load(norms + block, mask=group * 8 < n, other=0.0), TOP, POWERS) * scale
        total += step[:, :, None] * _value_of_level(_read_levels(codes, group, size, BITS), TOP, POWERS)
        norms += norm_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def qsgd_add_decoded(
    norms: Tensor,
    codes: Tensor,
    out: Tensor,
    bits: int,
    block: int,
    scale: float,
    levels: int = 0,
    grid: str = "uniform",
    fresh: bool = False,
) -> None:
    (ranks, size), count, n = codes.shape, norms.size(1), out.numel()
    rows = norms, norms.stride(0), codes, codes.stride(0), ranks
    form = {"FRESH": fresh, "BITS": bits, "TOP": top_of(bits, levels), "POWERS": grid == "powers"}
    if block > LARGEST_BLOCK:
        launch(_add_long, _rounding(out), *rows, out, n, size, block // 8, float32(scale), GROUPS=ROUND_GROUPS, **form)
        return
    part = tile(block)
    launch(_add, _parts(count, part), *rows, out, n, count, size, float32(scale), **form, **part)


@triton.jit
def _round_tile(
    x, norm, codes, n, size, key, step, BITS: tl.constexpr, TOP: tl.constexpr, GROUPS: tl.constexpr, program
):
    """Write the codes of this program's tile; return its elements' indices, values and levels, and the norm, (1,)."""
    group = (number(program) * GROUPS + tl.arange(0, GROUPS))[None, :]
    i = elements(group)
    values = tl.load(x + i, mask=i < n, other=0.0)
    given = tl.load(norm + tl.arange(0, 1))
    q = _write_levels(values, group, given, codes, size, key, step, BITS, TOP)
    return i, values, q, given


@triton.jit(do_not_specialize=["key", "step"])
def _round(
    x,
    norm,
    codes,
    n,
    size,
    key: tl.int64,
    step: tl.int64,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    program=None,
):
    _round_tile(x, norm, codes, n, size, key, step, BITS, TOP, GROUPS, program)


def round_encode(x: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, key: int, step: int) -> None:
    n, programs, form = x.numel(), _rounding(x), {"BITS": bits, "TOP": levels, "GROUPS": ROUND_GROUPS}
    launch(_round, programs, x, norm, codes, n, codes.numel(), key, step, **form)


@triton.jit(do_not_specialize=["key", "step"])
def _round_kept(
    residual,
    norm,
    codes,
    n,
    size,
    key: tl.int64,
    step: tl.int64,
    shrink: tl.float32,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    program=None,
):
    i, x, q, given = _round_tile(residual, norm, codes, n, size, key, step, BITS, TOP, GROUPS, program)
    distance = (_step_of(given, TOP) * shrink)[:, None, None]
    tl.store(residual + i, x - distance * q.to(tl.float32), mask=i < n)


def round_keep(
    residual: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, shrink: float, key: int, step: int
) -> None:
    n, programs, form = residual.numel(), _rounding(residual), {"BITS": bits, "TOP": levels, "GROUPS": ROUND_GROUPS}
    launch(_round_kept, programs, residual, norm, codes, n, codes.numel(), key, step, float32(shrink), **form)


def moments(x: Tensor, table: Tensor, centred: bool) -> None:
    """The operation on a GPU; a program measures several segments."""
    write_moments(x, None, table, centred, None, SEGMENT)


def moments_feedback(
    grad: Tensor, residual: Tensor, table: Tensor, centred: bool, status: Tensor | None = None
) -> None:
    """The operation on a GPU; a program measures several segments."""
    write_moments(grad, residual, table, centred, status, SEGMENT)


def moments_norm(table: Tensor, norm: Tensor, kind: str, factor: float, n: int) -> None:
    """The operation on a GPU; one program adds up all segments."""
    write_norm(table, norm, kind, factor, n, SEGMENT)


@triton.jit
def _base_of(magnitude):
    """The biased exponent below the window of each block, from its largest magnitude; 255 if that is not finite."""
    exponent = magnitude >> 23
    return tl.where(exponent == 255, 255, tl.maximum(exponent - 126, 0))


@triton.jit
def _words(counter, key, step, lane):
    word0, word1, word2, word3 = philox_words(counter, key, step)
    low = tl.where(lane % 2 == 0, word0[:, :, None], word1[:, :, None])
    high = tl.where(lane % 2 == 0, word2[:, :, None], word3[:, :, None])
    return tl.where(lane % 4 < 2, low, high)


@triton.jit
def _carries(group, key, step, RANDOM: tl.constexpr):
    """The integer that is added to the bits of each element of a tile."""
    lane = tl.arange(0, 8)[None, None, :]
    if RANDOM:
        first, second = _words(group * 2, key, step, lane), _words(group * 2 + 1, key, step, lane)
        return (tl.where(lane < 4, first, second) & _FRACTION).to(tl.int32)
    return tl.zeros_like(group)[:, :, None].to(tl.int32) + lane * 0 + (1 << 22)


@triton.jit
def _code_of(x, base, carry):
    """Compute the code of each element of a tile, as int32."""
    bits = x.to(tl.int32, bitcast=True)
    # Beyond 2**31 the sum of a NaN's bits would be negative; its block has no codes.
    exponent = tl.minimum((((bits & _MAGNITUDE).to(tl.uint32) + carry.to(tl.uint32)) >> 23).to(tl.int32), 254)
    window = base[:, None, None]
    code = tl.maximum(exponent - window, 0) | ((bits >> 24) & 0x80)
    return tl.where(window == 255, 0, code)


@triton.jit
def _value_of(code, base):
    """The values of codes 0 to 255 in blocks of a base below 255."""
    place = code & 0x7F
    power = tl.minimum(place + base[:, None, None], 255) << 23
    return (tl.where(place == 0, 0, power) | ((code << 24) & _SIGN)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["key", "step"])
def _natural(
    grad,
    residual,
    bases,
    codes,
    status,
    n,
    count,
    key: tl.int64,
    step: tl.int64,
    RANDOM: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    _, x = with_residual(grad, residual, groups(block, 0, GROUPS, SPAN), n)
    magnitude = largest(x)
    for start in range(SPAN, GROUPS, SPAN):
        _, x = with_residual(grad, residual, groups(block, start, GROUPS, SPAN), n)
        magnitude = tl.maximum(magnitude, largest(x))
    base = _base_of(magnitude)
    tl.store(bases + block, base.to(tl.uint8), mask=block < count)
    if status is not None:
        flag_nonfinite(magnitude.to(tl.float32, bitcast=True), status)
    for start in range(0, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        old, x = with_residual(grad, residual, group, n)
        code = _code_of(x, base, _carries(group, key, step, RANDOM))
        store(codes, code.to(tl.uint8), group, n)
        if residual is not None:
            kept = tl.where(base[:, None, None] == 255, float("nan"), x - _value_of(code, base))
            _keep(grad, residual, group, n, old, kept, status is not None)


def natural_encode(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    natural_encode_feedback(x, None, bases, codes, rounding, block, key, step)


def natural_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    n, count, part = grad.numel(), bases.numel(), tile(block)
    tensors, form = (grad, residual, bases, codes, status), {"RANDOM": int(rounding == "random"), **part}
    launch(_natural, _programs(count, part), *tensors, n, count, key, step, **form)


@triton.jit
def _add_powers(
    bases,
    base_stride,
    codes,
    code_stride,
    ranks,
    out,
    n,
    count,
    scale: tl.float32,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    i = elements(groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN))
    total = tl.load(out + i, mask=i < n)
    for _ in range(ranks):
        base = tl.load(bases + block, mask=block < count, other=0).to(tl.int32)
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        factor = tl.where(base == 255, float("nan"), scale)
        total += factor[:, None, None] * _value_of(code, base)
        bases += base_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def natural_add_decoded(bases: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    (ranks, n), count, part = codes.shape, bases.size(1), tile(block)
    rows = bases, bases.stride(0), codes, codes.stride(0), ranks
    launch(_add_powers, _parts(count, part), *rows, out, n, count, float32(scale), **part)


def _programs(count: int, part: dict[str, int]) -> tuple[int]:
    """The grid with a program for every few blocks of ``count``, which takes one part after the other."""
    return (triton.cdiv(count, part["ROWS"]),)


def _parts(count: int, part: dict[str, int]) -> tuple[int, int]:
    """The grid with a program for every part of every few blocks."""
    return (triton.cdiv(count, part["ROWS"]), triton.cdiv(part["GROUPS"], part["SPAN"]))


def _rounding(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), 8 * ROUND_GROUPS),)


@triton.jit
def _nearest(x, norm):
    """The nearest of 15 levels for each element of a tile, as float32."""
    usable = (norm > 0.0) & (norm < float("inf"))
    inverse = tl.where(usable, tl.div_rn(_top(norm, 7), norm), 0.0)
    # At 2**23 and a half the last bit of a float32 is 1, so adding rounds to an integer.
    return tl.where(usable[:, None, None], (x * inverse[:, None, None] + _MIDDLE) - _MIDDLE, 0.0)


@triton.jit
def _store_nibbles(codes, q, group, size):
    raw = (q.to(tl.int32) & 15).to(tl.int64)
    word = tl.sum(raw << (tl.arange(0, 8)[None, None, :] * 4), axis=2)
    byte, shift, inside = _bytes(group, size, 4)
    tl.store(codes + byte, (word[:, :, None] >> shift).to(tl.uint8), mask=inside)


@triton.jit
def _loco(x, norms, codes, n, count, size, GROUPS: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, program=None):
    block = blocks(ROWS, program)
    group = groups(block, 0, GROUPS, SPAN)
    values = load(x, group, n)
    norm = norm_of(largest(values))
    tl.store(norms + block, norm, mask=block < count)
    _store_nibbles(codes, _nearest(values, norm), group, size)


def loco_encode(x: Tensor, norms: Tensor, codes: Tensor, block: int) -> None:
    """The operation on a GPU; a program processes whole blocks."""
    count, part = norms.numel(), tile(block)
    launch(_loco, _programs(count, part), x, norms, codes, x.numel(), count, codes.numel(), **part)


@triton.jit
def _loco_averaged(
    grad,
    error,
    norms,
    codes,
    status,
    n,
    count,
    size,
    weight: tl.float32,
    share: tl.float32,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    group = groups(block, 0, GROUPS, SPAN)
    i = elements(group)
    column = tl.arange(0, SPAN)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    code = tl.load(error + block[:, None, None] * (GROUPS * 8 + 4) + column, mask=i < n, other=0).to(
        tl.int8, bitcast=True
    )
    byte = tl.arange(0, 4)[None, :]
    behind = error + block[:, None] * (GROUPS * 8 + 4) + GROUPS * 8 + byte
    stored = tl.load(behind, mask=(block < count)[:, None], other=0).to(tl.int32) << byte * 8
    m = code.to(tl.float32) * tl.sum(stored, axis=1).to(tl.float32, bitcast=True)[:, None, None]
    # The rest of the last block is filled with 0 and no NaN.
    x = tl.where(i < n, load(grad, group, n) + m * weight, 0.0)
    norm = norm_of(largest(x))
    tl.store(norms + block, norm, mask=block < count)
    flag_nonfinite(norm, status)
    q = _nearest(x, norm)
    _store_nibbles(codes, q, group, size)
    now = tl.where(i < n, m * share + (x - _step_of(norm, 7)[:, None, None] * q), 0.0)
    scale = code_scale(largest(now))
    flag_nonfinite(scale, status)
    write_rows(error, now, scale, block, count, GROUPS, SPAN)
    tl.store(grad + i, m, mask=i < n)


def loco_encode_averaged(
    grad: Tensor,
    error: Tensor,
    norms: Tensor,
    codes: Tensor,
    block: int,
    weight: float,
    share: float,
    status: Tensor,
) -> None:
    """The operation on a GPU; a program processes whole blocks."""
    count, part = norms.numel(), tile(block)
    tensors = grad, error, norms, codes, status
    numbers = grad.numel(), count, codes.numel(), float32(weight), float32(share)
    launch(_loco_averaged, _programs(count, part), *tensors, *numbers, **part)
