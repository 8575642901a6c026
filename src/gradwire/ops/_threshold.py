"""The stream of what exceeds a threshold, in whichever form is smallest; it starts with the form and the count k.

    0    float32[n], 0 where nothing is sent; k is n
    1    float32[k], then a bit for each element
    2    float32[k], then the count of each segment of 65536 elements as int32, and the low 16 bits of each place

The values come first, so that they can be written before it is known how many there are.
"""

import torch
from torch import Tensor

from gradwire.ops._bits import pack_bits, unpack_bits
from gradwire.ops._checks import float32
from gradwire.ops._dither import dither
from gradwire.ops._topk import SEGMENT, segments, write_places

__all__ = ["BITMAP", "BLOCK", "DENSE", "capacity", "exceeds", "read_sent", "write_sent"]

DENSE, BITMAP, BLOCK = 0, 1, 2
_HEAD = 8


def capacity(n: int) -> int:
    """The bytes that any ``n`` elements fit into.

    >>> capacity(10)
    48
    """
    return _HEAD + 4 * n


def exceeds(x: Tensor, threshold: float, level: Tensor | None) -> Tensor:
    """Where |x| is above the threshold, or reaches the level times the element's dither, or is not a number."""
    if level is None:
        return ~(x.abs() <= float32(threshold))
    return ~(x.abs() < level * dither(torch.arange(x.numel(), device=x.device)))


def write_sent(x: Tensor, sent: Tensor, stream: Tensor) -> int:
    """Write the elements of x that are to be sent to the front of ``stream``; the bytes it takes."""
    n, places = x.numel(), sent.nonzero().view(-1)
    k = places.numel()
    sizes = [4 * n, 4 * k + -(-n // 8), 6 * k + 4 * segments(n)]
    form = sizes.index(min(sizes))
    values = torch.where(sent, x, 0.0) if form == DENSE else x[places]
    stream[:_HEAD].view(torch.int32).copy_(torch.tensor([form, values.numel()], dtype=torch.int32))
    end = _HEAD + 4 * values.numel()
    stream[_HEAD:end] = values.view(torch.uint8)
    rest = stream[end : _HEAD + sizes[form]]
    if form == BITMAP:
        pack_bits(sent, rest)
    elif form == BLOCK:
        counts = torch.empty(segments(n), dtype=torch.int32, device=x.device)
        indices = torch.empty(k, dtype=torch.int16, device=x.device)
        write_places(places, indices, counts)
        rest.copy_(torch.cat([counts.view(torch.uint8), indices.view(torch.uint8)]))
    return _HEAD + sizes[form]


def read_sent(stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Places and their values; of bytes that make no sense, as many as do. What is beyond the stream is 0."""
    stream = torch.nn.functional.pad(stream, (0, max(0, capacity(n) - stream.numel())))
    form, k = stream[:_HEAD].clone().view(torch.int32).tolist()
    k = k if 0 <= k <= n else 0
    end = _HEAD + 4 * k
    values, rest = stream[_HEAD:end].clone().view(torch.float32), stream[end:]
    places = values.new_empty(0, dtype=torch.int64)
    if form == DENSE:
        places = torch.arange(k, device=stream.device)
    elif form == BITMAP:
        places = unpack_bits(rest, n).nonzero().view(-1)[:k]
    elif form == BLOCK:
        places = _blocks(rest, n, k)
    return places, values[: places.numel()]


def _blocks(rest: Tensor, n: int, k: int) -> Tensor:
    """The places of a block form that are below n; those of the counts beyond k do not exist."""
    middle = 4 * segments(n)
    counts = _padded(rest[:middle], middle).view(torch.int32).long()
    low = _padded(rest[middle : middle + 2 * k], 2 * k).view(torch.int16).long() & 0xFFFF
    ends = counts.clamp_(min=0).cumsum(0).clamp_(max=k)
    starts = torch.arange(counts.numel(), device=rest.device) * SEGMENT
    places = starts.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    return places + low[: places.numel()]


def _padded(data: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(data, (0, count - data.numel()))
