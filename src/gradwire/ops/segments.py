"""Format of the indices of some elements.

A place is a segment of 65536 elements and 16 bits within it: ``counts[s]`` says how many of the sorted indices lie in
segment s, ``indices`` holds their low 16 bits, as the bits of an int16.
"""

import torch
from torch import Tensor

__all__ = ["SEGMENT", "low_bits", "read_places", "segments", "write_places"]

SEGMENT = 65536


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
