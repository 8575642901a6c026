"""What exceeds a threshold, written in whichever form is smallest, as ``gradwire.ops._threshold`` has them.

How many elements are sent, and so the form and where its parts lie, is known on the device only: kernels read it from
``head``, int64: form, values written, elements sent, bytes in use.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._threshold import BITMAP, BLOCK, DENSE
from gradwire.ops._topk import SEGMENT, segments
from gradwire.ops.triton._compact import PART, before, rank, write_counts
from gradwire.ops.triton._dither import dither
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._signs import pack_signs
from gradwire.ops.triton._status import compensate
from gradwire.ops.triton._tile import elements

__all__ = ["write_exceeding"]

_DENSE, _BITMAP, _BLOCK = tl.constexpr(DENSE), tl.constexpr(BITMAP), tl.constexpr(BLOCK)
_SEGMENT_PARTS = tl.constexpr(SEGMENT // PART)
_HEAD = tl.constexpr(8)


@triton.jit
def _exceeds(x: tl.tensor, threshold: tl.tensor, level: tl.tensor, i: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Where |x| is above the threshold, or with a level at or above its own part of that, or either is a NaN."""
    below = tl.abs(x) <= threshold if level is None else tl.abs(x) < tl.load(level) * dither(i)
    return inside & ~below


@triton.jit
def _count(
    x: tl.tensor,
    grad: tl.tensor,
    status: tl.tensor,
    sent: tl.tensor,
    level: tl.tensor,
    n: tl.tensor,
    threshold: tl.float32,
    PART: tl.constexpr,
) -> None:
    i = elements(PART)
    if grad is not None:
        value = compensate(grad, x, status, i, n)
        tl.store(x + i, value, mask=i < n)
    else:
        value = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(sent + tl.program_id(0), tl.sum(_exceeds(value, threshold, level, i, i < n).to(tl.int32)))


@triton.jit
def _write(
    x: tl.tensor,
    floats: tl.tensor,
    words: tl.tensor,
    halves: tl.tensor,
    data: tl.tensor,
    head: tl.tensor,
    starts: tl.tensor,
    counts: tl.tensor,
    level: tl.tensor,
    n: tl.tensor,
    segments: tl.tensor,
    threshold: tl.float32,
    CLEAR: tl.constexpr,
    PART: tl.constexpr,
) -> None:
    i, part = elements(PART), tl.program_id(0)
    form, k = tl.load(head), tl.load(head + 2)
    value = tl.load(x + i, mask=i < n, other=0.0)
    sent = _exceeds(value, threshold, level, i, i < n)
    place = tl.load(starts + part) + rank(sent)
    tl.store(floats + 2 + tl.where(form == _DENSE, i, place), value, mask=sent)
    if form == _BITMAP:
        byte = part.to(tl.int64) * (PART // 8) + tl.arange(0, PART // 8)
        tl.store(data + _HEAD + 4 * k + byte, pack_signs(tl.reshape(sent, (PART // 8, 8))), mask=byte * 8 < n)
    if form == _BLOCK:
        tl.store(halves + 4 + 2 * k + 2 * segments + place, i.to(tl.int16), mask=sent)
        if part % _SEGMENT_PARTS == 0:
            segment = part // _SEGMENT_PARTS
            tl.store(words + 2 + k + segment, tl.load(counts + segment))
    if CLEAR:
        tl.store(x + i, tl.zeros((PART,), tl.float32), mask=sent)


def write_exceeding(
    x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None, grad: Tensor | None = None,
    status: Tensor | None = None,
) -> None:  # fmt: skip
    """Write the elements above the threshold. With ``grad``, x is the residual: it gets the sum less what was sent."""
    n, count = x.numel(), segments(x.numel())
    parts = triton.cdiv(n, PART)
    sent = torch.empty(parts, dtype=torch.int32, device=x.device)
    launch(_count, (parts,), x, grad, status, sent, level, n, threshold, PART=PART)
    head = _head(sent.sum(dtype=torch.int64), n)
    counts = torch.empty(count, dtype=torch.int32, device=x.device)
    write_counts(sent.cumsum(0), counts)
    used.copy_(head[3:])
    stream.zero_()
    words = stream.view(torch.int32)
    words[:2].copy_(head[:2])
    views = words.view(torch.float32), words, stream.view(torch.int16), stream
    starts, clear = before(sent), grad is not None
    launch(_write, (parts,), x, *views, head, starts, counts, level, n, count, threshold, CLEAR=clear, PART=PART)


def _head(k: Tensor, n: int) -> Tensor:
    dense, bitmap, block = torch.full_like(k, 4 * n), 4 * k + -(-n // 8), 6 * k + 4 * segments(n)
    sparse = torch.where(bitmap <= block, BITMAP, BLOCK)
    size = torch.minimum(bitmap, block)
    form = torch.where(dense <= size, DENSE, sparse)
    written = torch.where(dense <= size, n, k)
    return torch.stack((form, written, k, 8 + torch.minimum(dense, size)))
