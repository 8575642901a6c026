"""What the top-k operations share: which elements are kept, and how their places are written.

A place is a segment of 65536 elements and 16 bits within it: ``counts[s]`` says how many of the sorted indices lie in
segment s, ``indices`` holds their low 16 bits, as the bits of an int16.
"""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector

__all__ = [
    "SEGMENT", "add_inside", "check_places", "check_sparse", "low_bits", "places_of", "read_places", "segments",
    "select", "write_places",
]  # fmt: skip

SEGMENT = 65536


def segments(n: int) -> int:
    """How many segments ``n`` elements take.

    >>> segments(0), segments(65536), segments(65537)
    (0, 1, 2)
    """
    return -(-n // SEGMENT)


def check_sparse(op: str, x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    n, k = x.numel(), values.numel()
    check_vector(f"{op}.values", values, torch.float32, x)
    require(k <= n, f"{op}.values", f"at most {n} elements, one for each of x", k)
    check_vector(f"{op}.indices", indices, torch.int16, x, k)
    check_vector(f"{op}.counts", counts, torch.int32, x, segments(n))


def check_places(op: str, indices: Tensor, counts: Tensor, n: int) -> None:
    """Raise unless these are the places of at most ``n`` elements of ``n``."""
    check_vector(f"{op}.indices", indices, torch.int16, indices)
    require(indices.numel() <= n, f"{op}.indices", f"at most n = {n} elements", indices.numel())
    check_vector(f"{op}.counts", counts, torch.int32, indices, segments(n))


def select(x: Tensor, k: int) -> Tensor:
    """The indices of the ``k`` elements of largest magnitude, in increasing order; of equal ones the first are taken.

    Magnitudes are compared as the integers their bits form, so a NaN counts as larger than infinity.
    """
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    magnitudes = x.view(torch.int32) & 0x7FFFFFFF
    least = magnitudes.topk(k, sorted=True).values[-1]
    above, ties = magnitudes > least, magnitudes == least
    chosen = above | (ties & (ties.cumsum(0) <= k - above.sum()))
    # How many are chosen is known, so no device waits to be asked.
    return torch.searchsorted(chosen.cumsum(0), torch.arange(1, k + 1, device=x.device))


def write_places(chosen: Tensor, indices: Tensor, counts: Tensor) -> None:
    """Write sorted indices as places; of ``indices`` what is left becomes 0."""
    indices.zero_()[: chosen.numel()] = ((chosen & 0xFFFF) ^ 0x8000) - 0x8000
    ends = torch.arange(1, counts.numel() + 1, device=chosen.device) * SEGMENT
    counts.copy_(torch.searchsorted(chosen, ends).diff(prepend=ends.new_zeros(1)))


def read_places(indices: Tensor, counts: Tensor) -> Tensor:
    """The sorted indices that places stand for, as int64; the counts add up."""
    starts = torch.arange(counts.numel(), device=counts.device) * SEGMENT
    return starts.repeat_interleave(counts, output_size=indices.numel()) + low_bits(indices)


def places_of(counts: Tensor, indices: Tensor) -> Tensor:
    """The index of each entry, whatever the counts say; beyond all segments for those that they do not cover."""
    ends = counts.to(torch.int64).clamp_(min=0).cumsum(0)
    covered = torch.searchsorted(ends, torch.arange(indices.numel(), device=indices.device), right=True)
    return covered * SEGMENT + low_bits(indices)


def low_bits(indices: Tensor) -> Tensor:
    """The 16 bits of each index within its segment, as int64."""
    return indices.to(torch.int64) & 0xFFFF


def add_inside(out: Tensor, places: Tensor, values: Tensor) -> None:
    """``out[place] += value`` where a place is below n; the others are not asked for, which a device would wait for."""
    if out.numel():
        inside = places < out.numel()
        # Only -0.0 leaves every number as it is.
        out.index_add_(0, places.clamp(max=out.numel() - 1), values.masked_fill(~inside, -0.0))
