"""Elements that are marked by a bit each: the first of 8 in the lowest bit of a byte, and a count for each segment.

Two operations make a sparse payload: one marks, and says by its counts how many there are; ``take_marked`` then writes
them to where they belong. What is between is a thirty-second of the tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.ops._bits import pack_bits
from gradwire.ops._checks import check_vector, float32
from gradwire.ops._lanes import lane_sums
from gradwire.ops._philox import philox_words
from gradwire.ops._topk import SEGMENT, segments, write_places

__all__ = [
    "TAIL_SEGMENT", "beyond", "check_entries", "check_marks", "check_tail", "drawn", "tail_segments", "take_where",
    "write_marks", "write_tail",
]  # fmt: skip

TAIL_SEGMENT = 1024


def check_marks(op: str, bitmap: Tensor, counts: Tensor, x: Tensor) -> None:
    check_vector(f"{op}.bitmap", bitmap, torch.uint8, x, -(-x.numel() // 8))
    check_vector(f"{op}.counts", counts, torch.int32, x, segments(x.numel()))


def write_marks(marked: Tensor, bitmap: Tensor, counts: Tensor) -> None:
    """Write bools as bits, and how many are set in each segment."""
    pack_bits(marked, bitmap)
    padded = torch.nn.functional.pad(marked, (0, -marked.numel() % SEGMENT))
    counts.copy_(padded.view(counts.numel(), -1).sum(1) if counts.numel() else counts)


def beyond(x: Tensor, high: float, low: float) -> Tensor:
    """Where x >= high, x <= -low, or x is no number."""
    return ~((x > float32(-low)) & (x < float32(high)))


def drawn(x: Tensor, s: float, key: int, step: int) -> tuple[Tensor, Tensor]:
    """Where |x| >= s, and where else |x| > u s, u random in (0, 1)."""
    s = float32(s)
    words = philox_words(0, -(-x.numel() // 4), key, step, x.device).view(-1)[: x.numel()]
    u = (words ^ 2**31).double().add_(0.5).mul_(2.0**-32)
    above = x.abs() >= s
    return above, (u.mul_(s) < x.abs()) & ~above


def check_entries(op: str, which: str, counts: Tensor, values: Tensor, indices: Tensor, x: Tensor) -> None:
    check_vector(f"{op}.{which}counts", counts, torch.int32, x, segments(x.numel()))
    check_vector(f"{op}.{which}values", values, torch.float32, x)
    check_vector(f"{op}.{which}indices", indices, torch.int16, x, values.numel())


def take_where(x: Tensor, marked: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:
    """Write the counts of the marked elements, and as many of these as there is room for."""
    places = marked.nonzero().view(-1)
    low = torch.empty(places.numel(), dtype=torch.int16, device=x.device)
    write_places(places, low, counts)
    places = places[: values.numel()]
    values[: places.numel()] = x[places]
    indices[: places.numel()] = low[: places.numel()]


def tail_segments(n: int) -> int:
    """How many rows the tail moments of ``n`` elements have."""
    return -(-n // TAIL_SEGMENT)


def check_tail(op: str, table: Tensor, x: Tensor) -> None:
    check_vector(f"{op}.table", table, torch.float32, x, 4 * tail_segments(x.numel()))


def write_tail(x: Tensor, table: Tensor, low: float, high: float, unit: float) -> None:
    """Fill the table, row after row."""
    parts = torch.nn.functional.pad(x, (0, -x.numel() % TAIL_SEGMENT)).view(-1, TAIL_SEGMENT)
    sizes, rows = parts.abs(), table.view(-1, 4)
    inside = (sizes > low) & (sizes < high)
    y = torch.where(inside, (sizes - low) * unit, 0.0)
    rows[:, 0] = (parts.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)
    rows[:, 1], rows[:, 2], rows[:, 3] = inside.sum(1), lane_sums(y), lane_sums(y * y)
