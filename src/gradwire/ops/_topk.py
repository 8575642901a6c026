"""What the top-k operations share: which elements are kept, and how their places are written.

A place is a segment of 65536 elements and 16 bits within it: ``counts[s]`` says how many of the sorted indices lie in
segment s, ``indices`` holds their low 16 bits, as the bits of an int16.
"""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector

__all__ = ["SEGMENT", "check_places", "check_sparse", "low_bits", "read_places", "segments", "select", "write_places"]

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
    chosen = magnitudes > least
    ties = (magnitudes == least).nonzero().squeeze(1)
    chosen[ties[: k - int(chosen.sum())]] = True
    return chosen.nonzero().squeeze(1)


def write_places(chosen: Tensor, indices: Tensor, counts: Tensor) -> None:
    """Write sorted indices as places; of ``indices`` what is left becomes 0."""
    indices.zero_()[: chosen.numel()] = ((chosen & 0xFFFF) ^ 0x8000) - 0x8000
    counts.copy_(torch.bincount(chosen // SEGMENT, minlength=counts.numel()))


def read_places(indices: Tensor, counts: Tensor) -> Tensor:
    """The sorted indices that places stand for, as int64; the counts add up."""
    starts = torch.arange(counts.numel(), device=counts.device) * SEGMENT
    return starts.repeat_interleave(counts, output_size=indices.numel()) + low_bits(indices)


def low_bits(indices: Tensor) -> Tensor:
    """The 16 bits of each index within its segment, as int64."""
    return indices.to(torch.int64) & 0xFFFF
