"""3LC codes: -1, 0 or 1 for each element of a block, five in a byte, and runs of zeros in one.

With M the scale of a block, q = 1 where x > M / 2, -1 where x < -M / 2, else 0. Five neighbours are the byte
81 (q0 + 1) + 27 (q1 + 1) + 9 (q2 + 1) + 3 (q3 + 1) + (q4 + 1), below 243, zeros being added after the last element of a
block. Within a block a run of r = 2 .. 14 bytes of five zeros (121) is the byte 241 + r; longer runs are cut from their
start. A block whose scale is zero or not finite has no bytes.
"""

import math

import torch
from torch import Tensor

from gradwire.errors import is_float32, is_int, require
from gradwire.ops._checks import check_vector
from gradwire.ops._qsgd import TINY

__all__ = ["capacity", "check_block", "check_payload", "decode", "encode", "scales_of", "ternary"]

_ZEROS, _FIRST_RUN, _LONGEST = 121, 243, 14
_WEIGHTS = (81, 27, 9, 3, 1)


def capacity(n: int, block: int) -> int:
    """How many bytes the codes of ``n`` elements take at most: a block never takes more than its groups of five."""
    return n // block * _groups(block) + _groups(n % block)


def check_block(op: str, block: int) -> None:
    multiple = is_int(block, 16, 65536) and block % 16 == 0
    require(multiple, f"{op}.block", "a multiple of 16 from 16 to 65536", block)


def check_payload(
    op: str, x: Tensor, used: Tensor, scales: Tensor, lengths: Tensor, stream: Tensor, block: int, sparsity: float
) -> None:
    check_block(op, block)
    require(is_float32(sparsity) and 1 <= sparsity < 2, f"{op}.sparsity", "in [1, 2)", sparsity)
    blocks = -(-x.numel() // block)
    check_vector(f"{op}.used", used, torch.int32, x, 1)
    check_vector(f"{op}.scales", scales, torch.float32, x, blocks)
    check_vector(f"{op}.lengths", lengths, torch.int16, x, blocks)
    check_vector(f"{op}.stream", stream, torch.uint8, x, capacity(x.numel(), block))


def scales_of(x: Tensor, block: int, sparsity: float) -> Tensor:
    """M of each block; a vanishing one is zero."""
    magnitudes = _blocks(x, block).view(torch.int32) & 0x7FFFFFFF
    scales = magnitudes.amax(1).view(torch.float32) * torch.tensor(sparsity, device=x.device)
    return scales.masked_fill_(scales < TINY, 0.0)


def ternary(x: Tensor, scales: Tensor, block: int) -> Tensor:
    """The q of each element, int64, with zeros up to the end of the last block."""
    half, parts = (scales * 0.5).unsqueeze(1), _blocks(x, block)
    q = (parts > half).long() - (parts < -half).long()
    return q.masked_fill_(~_usable(scales).unsqueeze(1), 0)


def encode(q: Tensor, scales: Tensor, n: int, used: Tensor, lengths: Tensor, stream: Tensor) -> None:
    """Write the bytes of all blocks, side by side; what is left of the stream is zero."""
    block = q.size(1)
    weights = torch.tensor(_WEIGHTS, device=q.device)
    groups = (torch.nn.functional.pad(q, (0, -block % 5)).view(q.size(0), _groups(block), 5) * weights).sum(2) + _ZEROS
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


def decode(lengths: Tensor, stream: Tensor, n: int, block: int) -> Tensor:
    """The q of each element, float32; whatever the bytes are, nothing is read or written beyond its block."""
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
    digits = groups[:-1].unsqueeze(1) // torch.tensor(_WEIGHTS, device=stream.device) % 3 - 1
    return digits.view(blocks, room * 5)[:, :block].reshape(-1)[:n].float()


def _usable(scales: Tensor) -> Tensor:
    return scales.isfinite() & (scales > 0)


def _groups(count: int) -> int:
    return math.ceil(count / 5)


def _blocks(x: Tensor, block: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block)
