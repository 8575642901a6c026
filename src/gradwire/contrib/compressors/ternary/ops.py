"""3LC's codes: ternary values, five in a byte, and runs of zeros.

With M the scale of a block, q = 1 where x > M / 2, -1 where x < -M / 2, else 0. Five neighbours are the byte
81 (q0 + 1) + 27 (q1 + 1) + 9 (q2 + 1) + 3 (q3 + 1) + (q4 + 1), below 243, zeros being added after the last element of a
block. Within a block a run of r = 2 .. 14 bytes of five zeros (121) is the byte 241 + r; longer runs are cut from their
start. A block whose scale is zero or not finite has no bytes.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from gradwire._once import once
from gradwire.kernels.arguments import Flat, Floats, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.levels import TINY, in_blocks

__all__ = [
    "three_lc_add_decoded",
    "three_lc_capacity",
    "three_lc_encode",
    "three_lc_encode_feedback",
]

Used = Annotated[Tensor, Flat(torch.int32, "1", written=True)]

_ZEROS, _FIRST_RUN, _LONGEST = 121, 243, 14


@once
def _weights(device: torch.device) -> Tensor:
    """The weight of each of five elements in a byte; made once, because the host waits for a copy of numbers."""
    return torch.tensor((81, 27, 9, 3, 1), device=device)


def three_lc_capacity(n: int, block: int) -> int:
    """The largest number of bytes for the codes of ``n`` elements: a block never takes more than its groups of five."""
    return n // block * _groups(block) + _groups(n % block)


def _scales_of(x: Tensor, block: int, sparsity: float) -> Tensor:
    """Compute M of each block; a vanishing one is zero."""
    magnitudes = in_blocks(x, block).view(torch.int32) & 0x7FFFFFFF
    scales = magnitudes.amax(1).view(torch.float32) * torch.tensor(sparsity, dtype=torch.float32, device=x.device)
    return scales.masked_fill_(scales < TINY, 0.0)


def _ternary_of(x: Tensor, scales: Tensor, block: int) -> Tensor:
    """Compute the q of each element, int64, with zeros up to the end of the last block."""
    half, parts = (scales * 0.5).unsqueeze(1), in_blocks(x, block)
    q = (parts > half).long() - (parts < -half).long()
    return q.masked_fill_(~_usable(scales).unsqueeze(1), 0)


def _write_blocks(q: Tensor, scales: Tensor, n: int, used: Tensor, lengths: Tensor, stream: Tensor) -> None:
    """Write the bytes of all blocks, side by side; the rest of the stream is zero."""
    block = q.size(1)
    groups = (torch.nn.functional.pad(q, (0, -block % 5)).view(q.size(0), _groups(block), 5) * _weights(q.device)).sum(
        2
    ) + _ZEROS
    at = torch.arange(groups.size(1), device=q.device).expand_as(groups)
    sizes = torch.full_like(lengths, _groups(block), dtype=torch.int64)
    sizes[-1:].fill_(_groups(n - block * (len(sizes) - 1)))
    present = (at < sizes.unsqueeze(1)) & _usable(scales).unsqueeze(1)
    zero = present & (groups == _ZEROS)
    before = torch.where(zero, -1, at).cummax(1).values if groups.numel() else at
    after = torch.where(zero, groups.size(1), at).flip(1).cummin(1).values.flip(1) if groups.numel() else at
    starts = zero & ((at - before - 1) % _LONGEST == 0)
    run = (after - at).clamp(max=_LONGEST)
    value = torch.where(starts & (run > 1), run + (_FIRST_RUN - 2), groups)
    written = (present & ~zero) | starts
    place = written.view(-1).cumsum(0) - 1
    out = stream.new_zeros(stream.numel() + 1)
    out.scatter_(0, place.masked_fill_(~written.view(-1), stream.numel()), value.view(-1).to(torch.uint8))
    stream.copy_(out[:-1])
    lengths.copy_(written.sum(1))
    used.copy_(written.sum().view(1))


def _read_blocks(lengths: Tensor, stream: Tensor, n: int, block: int) -> Tensor:
    """Read the q of each element, float32; whatever the bytes are, nothing is read or written beyond its block."""
    blocks, room = lengths.numel(), _groups(block)
    ends = lengths.clamp(min=0).long().cumsum(0)
    of = torch.searchsorted(ends, torch.arange(stream.numel(), device=stream.device), right=True)
    byte = stream.long()
    passed = torch.where(byte >= _FIRST_RUN, byte - (_FIRST_RUN - 2), 1).cumsum(0)
    first = (ends - lengths.clamp(min=0))[of.clamp(max=max(blocks - 1, 0))] if blocks else of
    start = torch.nn.functional.pad(passed, (1, 0))
    group = start[:-1] - start[first.clamp(max=stream.numel())]
    whole = ends[of.clamp(max=max(blocks - 1, 0))] <= stream.numel() if blocks else of > 0
    inside = (of < blocks) & whole & (group < room) & (byte < _FIRST_RUN)
    groups = stream.new_full((blocks * room + 1,), _ZEROS, dtype=torch.int64)
    groups.scatter_(0, torch.where(inside, of * room + group, blocks * room), byte)
    digits = groups[:-1].unsqueeze(1) // _weights(stream.device) % 3 - 1
    return digits.view(blocks, room * 5)[:, :block].reshape(-1)[:n].float()


def _usable(scales: Tensor) -> Tensor:
    return scales.isfinite() & (scales > 0)


def _groups(count: int) -> int:
    return math.ceil(count / 5)


Scales = Annotated[Tensor, Flat(torch.float32, "-(-n // block)", written=True)]
Lengths = Annotated[Tensor, Flat(torch.int16, "-(-n // block)", written=True)]
Stream = Annotated[Tensor, Flat(torch.uint8, "three_lc_capacity(n, block)", written=True)]
Block = Annotated[int, Where("16 <= block <= 65536 and block % 16 == 0", "a multiple of 16 from 16 to 65536")]
Sparsity = Annotated[float, Where("1 <= sparsity < 2", "in [1, 2)")]


@declared
def three_lc_encode(
    x: Floats,
    used: Used,
    scales: Scales,
    lengths: Lengths,
    stream: Stream,
    block: Block,
    sparsity: Sparsity,
) -> None:
    """Round each element of a block to -M, 0 or M, M = sparsity * max|x|: five elements a byte, runs of zeros in one.

    Args:
        x: float32, n elements; not changed.
        used: int32, one element: how many bytes of the stream were written.
        scales: float32, ceil(n / block): M. Below 2**-120 it is zero; one that is not finite decodes to NaN.
        lengths: int16, ceil(n / block): how many bytes each block takes.
        stream: uint8, ceil(block / 5) for each block: the bytes of the blocks side by side, then zeros.
        block: a multiple of 16 from 16 to 65536.
        sparsity: factor of the block's maximum, in [1, 2), rounded to float32.

    >>> used, scales = torch.empty(1, dtype=torch.int32), torch.empty(1)
    >>> lengths, stream = torch.empty(1, dtype=torch.int16), torch.empty(1, dtype=torch.uint8)
    >>> three_lc_encode(torch.tensor([4.0, -2.0, 2.1, -4.0, 0.1]), used, scales, lengths, stream, 16, 1.0)
    >>> scales.item(), stream[: used.item()].tolist()
    (4.0, [208])

    Source: H. Lim, D. G. Andersen, M. Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed
    Machine Learning", MLSys 2019.
    """
    scales.copy_(_scales_of(x, block, sparsity))
    _write_blocks(_ternary_of(x, scales, block), scales, x.numel(), used, lengths, stream)


@declared
def three_lc_encode_feedback(
    grad: Written,
    residual: Written,
    used: Used,
    scales: Scales,
    lengths: Lengths,
    stream: Stream,
    block: Block,
    sparsity: Sparsity,
    status: Status = None,
) -> None:
    """Encode x = residual + grad as ``three_lc_encode`` does and keep x - M, x or x + M.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        used: int32, one element.
        scales: float32, ceil(n / block). Where one is not finite the residual becomes NaN.
        lengths: int16, ceil(n / block).
        stream: uint8, as ``three_lc_encode`` writes it.
        block: a multiple of 16 from 16 to 65536.
        sparsity: factor of the block's maximum, in [1, 2).
        status: int32 of one element, or None. Its bit 0 is set when an element of x or a scale is not finite.

    >>> used, scales = torch.empty(1, dtype=torch.int32), torch.empty(1)
    >>> lengths, stream = torch.empty(1, dtype=torch.int16), torch.empty(1, dtype=torch.uint8)
    >>> residual = torch.tensor([3.0, -2.0, 2.5, -5.0, 0.0])
    >>> three_lc_encode_feedback(torch.ones(5), residual, used, scales, lengths, stream, 16, 1.0)
    >>> residual.tolist()
    [0.0, -1.0, -0.5, 0.0, 1.0]

    Source: as ``three_lc_encode``.
    """
    x = compensate(grad, residual, status)
    scales.copy_(_scales_of(x, block, sparsity))
    q = _ternary_of(x, scales, block)
    _write_blocks(q, scales, x.numel(), used, lengths, stream)
    steps = scales.unsqueeze(1).expand_as(q).reshape(-1)[: x.numel()]
    q = q.view(-1)[: x.numel()]
    kept = torch.where(q > 0, x - steps, torch.where(q < 0, x + steps, x))
    residual.copy_(kept.masked_fill_(~steps.isfinite(), torch.nan))
    if status is not None:
        status |= ~scales.isfinite().all()


@declared
def three_lc_add_decoded(
    scales: Annotated[Tensor, Rows(torch.float32, "-(-n // block)")],
    lengths: Annotated[Tensor, Rows(torch.int16, "-(-n // block)")],
    stream: Annotated[Tensor, Rows(torch.uint8, "length")],
    out: Written,
    block: Block,
    scale: float,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * M) * q, where q is not 0.

    Args:
        scales: float32, (W, ceil(n / block)) with contiguous rows: the scales M of each rank.
        lengths: int16, (W, ceil(n / block)) with contiguous rows: bytes of each block. One that does not fit into the
            stream counts as no bytes.
        stream: uint8, (W, bytes) with contiguous rows: at least what is used. Any bytes are safe.
        out: float32, n elements; NaN in blocks whose scale is not finite.
        block: a multiple of 16 from 16 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out, lengths = torch.zeros(5), torch.ones(1, 1, dtype=torch.int16)
    >>> stream = torch.tensor([[208]], dtype=torch.uint8)
    >>> three_lc_add_decoded(torch.tensor([[4.0]]), lengths, stream, out, block=16, scale=0.5)
    >>> out.tolist()
    [2.0, 0.0, 2.0, -2.0, 0.0]

    Source: H. Lim, D. G. Andersen, M. Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed
    Machine Learning", MLSys 2019.
    """
    n = out.numel()
    for row_scales, row_lengths, row_stream in zip(scales, lengths, stream, strict=True):
        q = _read_blocks(row_lengths, row_stream, n, block)
        steps = (row_scales * float32(scale)).repeat_interleave(block, output_size=row_scales.numel() * block)[:n]
        out.copy_(torch.where(q != 0, out + steps * q, out))
        broken = ~row_scales.isfinite()
        out.masked_fill_(broken.repeat_interleave(block, output_size=broken.numel() * block)[:n], torch.nan)
