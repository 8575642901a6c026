"""Casts and 8-bit codes on a GPU; 8-bit codes are in the tiles of ``gradwire.kernels.triton.levels``, and their
values are looked up in the codebook.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.compressors.casts.ops import KINDS, codebook
from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.kernel_launch import BLOCK, ScratchMemory, launch, scratch
from gradwire.kernels.triton.levels import elements as elements_of
from gradwire.kernels.triton.levels import groups, largest, load, norm_of, store, tile, with_residual
from gradwire.kernels.triton.status import flag_nonfinite
from gradwire.kernels.triton.tile import begin_sum_at, blocks, elements, number

__all__ = [
    "cast_add_decoded",
    "cast_encode",
    "cast_encode_feedback",
    "eightbit_add_decoded",
    "eightbit_encode",
    "eightbit_encode_feedback",
]

_LINEAR = tl.constexpr(0)
_DYNAMIC = tl.constexpr(1)
_E4M3 = tl.constexpr(2)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_BYTE = tl.constexpr(0xFF)
_MIDDLE = tl.constexpr(12582912.0)
_AHEAD = tl.constexpr(0.8888888955116272)  # 8 / 9 in float32


@triton.jit
def _bfloat_bits(x):
    """The bits of x in bfloat16, rounded to nearest even, as int16; the interpreter's own conversion truncates."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet = bits | 0x400000
    return (tl.where(x == x, rounded, quiet) >> 16).to(tl.int16)


@triton.jit
def _cast(x, out, n, scale: tl.float32, BFLOAT: tl.constexpr, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    scaled = tl.load(x + i, mask=inside) * scale
    if BFLOAT:
        tl.store(out + i, _bfloat_bits(scaled), mask=inside)
    else:
        tl.store(out + i, scaled.to(out.dtype.element_ty), mask=inside)


def cast_encode(x: Tensor, out: Tensor, scale: float) -> None:
    n, bfloat = x.numel(), out.dtype is torch.bfloat16
    target = out.view(torch.int16) if bfloat else out
    launch(_cast, (triton.cdiv(n, BLOCK),), x, target, n, float32(scale), BFLOAT=bfloat, BLOCK=BLOCK)


@triton.jit
def _cast_feedback(grad, residual, out, status, n, BFLOAT: tl.constexpr, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    old = tl.load(residual + i, mask=inside, other=0.0)
    x = old + tl.load(grad + i, mask=inside, other=0.0)
    if BFLOAT:
        bits = _bfloat_bits(x)
        code, value = bits, (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        code = x.to(out.dtype.element_ty)
        value = code.to(tl.float32)
    tl.store(out + i, code, mask=inside)
    tl.store(residual + i, x - value, mask=inside)
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(x - value, status)


def cast_encode_feedback(grad: Tensor, residual: Tensor, out: Tensor, status: Tensor | None = None) -> None:
    n, bfloat = grad.numel(), out.dtype is torch.bfloat16
    target = out.view(torch.int16) if bfloat else out
    launch(_cast_feedback, (triton.cdiv(n, BLOCK),), grad, residual, target, status, n, BFLOAT=bfloat, BLOCK=BLOCK)


@triton.jit
def _cast_sum(
    payload,
    stride,
    ranks,
    out,
    n,
    scale: tl.float32,
    BFLOAT: tl.constexpr,
    FRESH: tl.constexpr,
    BLOCK: tl.constexpr,
    program=None,
):
    i = elements(BLOCK, program)
    inside = i < n
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        value = tl.load(payload + i, mask=inside)
        if BFLOAT:
            total += (value.to(tl.int32) << 16).to(tl.float32, bitcast=True) * scale
        else:
            total += value.to(tl.float32) * scale
        payload += stride
    tl.store(out + i, total, mask=inside)


def cast_add_decoded(payloads: Tensor, out: Tensor, scale: float, fresh: bool = False) -> None:
    n, ranks, bfloat = out.numel(), payloads.size(0), payloads.dtype is torch.bfloat16
    # As integers, since the interpreter's own conversion of subnormal bfloat16 is wrong.
    source = payloads.view(torch.int16) if bfloat else payloads
    rows = source, source.stride(0), ranks
    form = {"BFLOAT": bfloat, "FRESH": fresh, "BLOCK": BLOCK}
    launch(_cast_sum, (triton.cdiv(n, BLOCK),), *rows, out, n, float32(scale), **form)


@triton.jit
def _step_of(norm, KIND: tl.constexpr):
    """The factor for the values of a codebook in each block."""
    return tl.div_rn(norm, tl.full(norm.shape, _largest_of(KIND), tl.float32))


@triton.jit
def _code_of(x, norm, book, KIND: tl.constexpr):
    """Compute the code of each element of a tile, as int32."""
    usable = (norm > 0.0) & (norm < float("inf"))
    inverse = tl.where(usable, tl.div_rn(tl.full(norm.shape, 1.0, tl.float32), norm), 0.0)
    y = x * inverse[:, None, None]
    if KIND == _LINEAR:
        code = (y * 127.0 + _MIDDLE).to(tl.int32, bitcast=True) & _BYTE
    elif KIND == _DYNAMIC:
        code = _dynamic(y, book)
    elif KIND == _E4M3:
        code = _float8(y * 448.0, 3, 7)
    else:
        code = _float8(y * 57344.0, 2, 15)
    return tl.where(usable[:, None, None], code, 127 if KIND == _DYNAMIC else 0)


@triton.jit
def _largest_of(KIND: tl.constexpr):
    return 127.0 if KIND == _LINEAR else 1.0 if KIND == _DYNAMIC else 448.0 if KIND == _E4M3 else 57344.0


@triton.jit
def _dynamic(y, book):
    magnitude = tl.abs(y)
    first = tl.full(y.shape, 1.0, tl.float32)
    slope = first * tl.load(book + 264)
    for d in tl.static_range(1, 7):
        above = magnitude >= tl.load(book + 256 + d)
        first = tl.where(above, 1.0 * (1 << d), first)
        slope = tl.where(above, tl.load(book + 264 + d), slope)
    # Nothing is negative here, so the conversion to an integer is the floor.
    place = tl.minimum(magnitude * slope + first * _AHEAD, first + first - 1.0).to(tl.int32)
    place = tl.where(magnitude >= tl.load(book + 256), place, 0)
    place = tl.where(y >= tl.load(book + 263), 128, place)
    return 127 + tl.where(y < 0.0, -place, place)


@triton.jit
def _float8(scaled, FRACTION: tl.constexpr, BIAS: tl.constexpr):
    shift: tl.constexpr = 23 - FRACTION
    bits = scaled.to(tl.int32, bitcast=True)
    word = bits & _MAGNITUDE
    normal = ((word + (1 << (shift - 1)) - 1 + ((word >> shift) & 1)) >> shift) - ((127 - BIAS) << FRACTION)
    unit = 1.0 * (1 << (24 - BIAS - FRACTION))
    subnormal = (tl.abs(scaled) + unit).to(tl.int32, bitcast=True) - ((151 - BIAS - FRACTION) << 23)
    small = word < ((128 - BIAS) << 23)
    return tl.where(small, subnormal, normal) | ((bits >> 24) & 0x80)


@triton.jit
def _clear_word(word, program=None):  # noqa: ARG001
    tl.store(word + tl.arange(0, 1), tl.zeros((1,), tl.int32))


@triton.jit
def _find_largest(x, residual, word, n, UNDO: tl.constexpr, BLOCK: tl.constexpr, program=None):
    """Find the largest magnitude of x, or of residual + x, which becomes the residual."""
    i = elements(BLOCK, program)
    values = tl.load(x + i, mask=i < n, other=0.0)
    if residual is not None:
        old = tl.load(residual + i, mask=i < n, other=0.0)
        values = old + values
        tl.store(residual + i, values, mask=i < n)
        if UNDO:
            tl.store(x + i, old, mask=i < n)
    found = tl.max(values.to(tl.int32, bitcast=True) & _MAGNITUDE, axis=0)
    tl.atomic_max(word, found, sem="relaxed")


def _largest_in(x: Tensor, residual: Tensor | None, undo: bool) -> Tensor | ScratchMemory:
    """The largest magnitude of a whole tensor, as the integer of its bits; no order of the programs changes it."""
    word, n = scratch(1, torch.int32, x), x.numel()
    launch(_clear_word, (1,), word)
    launch(_find_largest, (triton.cdiv(n, BLOCK),), x, residual, word, n, UNDO=undo, BLOCK=BLOCK)
    return word


@triton.jit
def _code_with_one_scale(
    x, scales, codes, book, word, status, n, KEEP: tl.constexpr, KIND: tl.constexpr, GROUPS: tl.constexpr, program=None
):
    """Encode x, of which the largest magnitude is known; with ``KEEP`` it becomes what the codes do not represent."""
    norm = norm_of(tl.load(word + tl.arange(0, 1)))
    if number(program) == 0:
        tl.store(scales + tl.arange(0, 1), norm)
        if status is not None:
            flag_nonfinite(norm, status)
    group = (number(program) * GROUPS + tl.arange(0, GROUPS))[None, :]
    values = load(x, group, n)
    code = _code_of(values, norm, book, KIND)
    store(codes, code.to(tl.uint8), group, n)
    if KEEP:
        store(x, values - _step_of(norm, KIND)[:, None, None] * tl.load(book + code), group, n)


def _encode_with_one_scale(
    x: Tensor, residual: Tensor | None, scales: Tensor, codes: Tensor, kind: str, status: Tensor | None
) -> None:
    """Encode a tensor with one scale for all: find it, and then write the codes."""
    n, form = x.numel(), {"KIND": KINDS.index(kind), "GROUPS": BLOCK // 8, "KEEP": residual is not None}
    word = _largest_in(x, residual, status is not None)
    tensors = x if residual is None else residual, scales, codes, codebook(kind, x.device), word, status
    launch(_code_with_one_scale, (triton.cdiv(n, BLOCK),), *tensors, n, **form)


@triton.jit
def _write(grad, residual, codes, book, norm, group, n, old, x, KIND: tl.constexpr, UNDO: tl.constexpr):
    code = _code_of(x, norm, book, KIND)
    store(codes, code.to(tl.uint8), group, n)
    if residual is not None:
        store(residual, x - _step_of(norm, KIND)[:, None, None] * tl.load(book + code), group, n)
        if UNDO:
            store(grad, old, group, n)


@triton.jit
def _eightbit(
    grad,
    residual,
    scales,
    codes,
    book,
    status,
    n,
    count,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    group = groups(block, 0, GROUPS, SPAN)
    old, x = with_residual(grad, residual, group, n)
    magnitude = largest(x)
    for start in range(SPAN, GROUPS, SPAN):
        _, more = with_residual(grad, residual, groups(block, start, GROUPS, SPAN), n)
        magnitude = tl.maximum(magnitude, largest(more))
    norm = norm_of(magnitude)
    tl.store(scales + block, norm, mask=block < count)
    if status is not None:
        flag_nonfinite(norm, status)
    # The first part, all of it where blocks are short, is still in registers.
    _write(grad, residual, codes, book, norm, group, n, old, x, KIND, status is not None)
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        old, x = with_residual(grad, residual, group, n)
        _write(grad, residual, codes, book, norm, group, n, old, x, KIND, status is not None)


def eightbit_encode(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    eightbit_encode_feedback(x, None, scales, codes, kind, block)


def eightbit_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    scales: Tensor,
    codes: Tensor,
    kind: str,
    block: int,
    status: Tensor | None = None,
) -> None:
    if block == 0:
        _encode_with_one_scale(grad, residual, scales, codes, kind, status)
        return
    n, count, part = grad.numel(), scales.numel(), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]),)
    tensors = grad, residual, scales, codes, codebook(kind, grad.device), status
    launch(_eightbit, grid, *tensors, n, count, KIND=KINDS.index(kind), **part)


@triton.jit
def _eightbit_sum(
    scales,
    scale_stride,
    codes,
    code_stride,
    ranks,
    out,
    book,
    n,
    count,
    scale: tl.float32,
    FRESH: tl.constexpr,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    program=None,
):
    block = blocks(ROWS, program)
    i = elements_of(groups(block, tl.program_id(1) * SPAN, GROUPS, SPAN))
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        step = _step_of(tl.load(scales + block, mask=block < count, other=0.0), KIND) * scale
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        total += step[:, None, None] * tl.load(book + code)
        scales += scale_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


@triton.jit
def _add_with_one_scale(
    scales,
    scale_stride,
    codes,
    code_stride,
    ranks,
    out,
    book,
    n,
    scale: tl.float32,
    FRESH: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    program=None,
):
    i = elements(BLOCK, program)
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        step = _step_of(tl.load(scales + tl.arange(0, 1)), KIND) * scale
        code = tl.load(codes + i, mask=i < n, other=0).to(tl.int32)
        total += step * tl.load(book + code)
        scales += scale_stride
        codes += code_stride
    tl.store(out + i, total, mask=i < n)


def eightbit_add_decoded(
    scales: Tensor, codes: Tensor, out: Tensor, kind: str, block: int, scale: float, fresh: bool = False
) -> None:
    rows = scales, scales.stride(0), codes, codes.stride(0), codes.size(0)
    n, count, book = codes.size(1), scales.size(1), codebook(kind, out.device)
    if block == 0:
        form = {"FRESH": fresh, "KIND": KINDS.index(kind), "BLOCK": BLOCK}
        launch(_add_with_one_scale, (triton.cdiv(n, BLOCK),), *rows, out, book, n, float32(scale), **form)
        return
    part = tile(block) | {"FRESH": fresh, "KIND": KINDS.index(kind)}
    grid = (triton.cdiv(count, part["ROWS"]), triton.cdiv(part["GROUPS"], part["SPAN"]))
    launch(_eightbit_sum, grid, *rows, out, book, n, count, float32(scale), **part)
