"""Format of the indices of some elements.

A place is a segment of 65536 elements and 16 bits within it: ``counts[s]`` says how many of the sorted indices lie in
segment s, ``indices`` holds their low 16 bits, as the bits of an int16.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.errors import WireError

__all__ = [
    "SEGMENT",
    "cache_pieces",
    "check_places",
    "few",
    "low_bits",
    "read_places",
    "segments",
    "write_places",
]

SEGMENT = 65536
_CACHED = 1 << 15


def segments(n: int) -> int:
    """The number of segments of ``n`` elements.

    >>> segments(0), segments(65536), segments(65537)
    (0, 1, 2)
    """
    return -(-n // SEGMENT)


def write_places(chosen: Tensor, indices: Tensor, counts: Tensor) -> None:
    """Write sorted indices as places; the remaining elements of ``indices`` become 0."""
    indices.zero_()[: chosen.numel()] = ((chosen & 0xFFFF) ^ 0x8000) - 0x8000
    ends = torch.arange(1, counts.numel() + 1, device=chosen.device) * SEGMENT
    counts.copy_(torch.searchsorted(chosen, ends).diff(prepend=ends.new_zeros(1)))


def read_places(indices: Tensor, counts: Tensor) -> Tensor:
    """Read the sorted indices that places represent, as int64; the counts add up."""
    starts = torch.arange(counts.numel(), device=counts.device) * SEGMENT
    return starts.repeat_interleave(counts, output_size=indices.numel()) + low_bits(indices)


def low_bits(indices: Tensor) -> Tensor:
    """Extract the 16 bits of each index within its segment, as int64."""
    return indices.to(torch.int64) & 0xFFFF


def few(values: Tensor) -> str:
    """List at most eight of the values, for a message."""
    shown = ", ".join(map(str, values[:8].tolist()))
    return f"[{shown}, ...]" if values.numel() > 8 else f"[{shown}]"


def check_places(name: str, counts: Tensor, low: Tensor, n: int) -> None:
    """Refuse counts and indices that do not describe different elements of n.

    Raises:
        WireError: a count is negative, they do not sum to the number of indices, or the indices do not increase.
    """
    if bool((counts < 0).any()) or int(counts.sum()) != low.numel():
        raise WireError(f"{name} counts must be >= 0 and sum to {low.numel()}, got {few(counts)}")
    index = read_places(low, counts)
    if bool((index.diff() <= 0).any()) or bool((index[-1:] >= n).any()):
        raise WireError(f"{name} indices must increase and stay below {n}, got {few(index)}")


def cache_pieces(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield offsets and slices of pieces whose temporaries stay in a cache; an accelerator takes all of x at once.

    >>> [(begin, len(piece)) for begin, piece in cache_pieces(torch.zeros(40000))]
    [(0, 32768), (32768, 7232)]
    """
    size = _CACHED if x.device.type == "cpu" else max(1, x.numel())
    for begin in range(0, x.numel(), size):
        yield begin, x[begin : begin + size]
