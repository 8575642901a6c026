"""Elements that are marked by a bit each: the first of 8 in the lowest bit of a byte, and a count for each segment.

Two operations make a sparse payload: one marks, and says by its counts how many there are; ``take_marked`` then writes
them to where they belong. What is between is a thirty-second of the tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.ops._bits import pack_bits
from gradwire.ops._checks import check_vector
from gradwire.ops._moments import lane_sums
from gradwire.ops._topk import SEGMENT, segments

__all__ = ["TAIL_SEGMENT", "check_marks", "check_tail", "tail_segments", "write_marks", "write_tail"]

TAIL_SEGMENT = 1024


def check_marks(op: str, bitmap: Tensor, counts: Tensor, x: Tensor) -> None:
    check_vector(f"{op}.bitmap", bitmap, torch.uint8, x, -(-x.numel() // 8))
    check_vector(f"{op}.counts", counts, torch.int32, x, segments(x.numel()))


def write_marks(marked: Tensor, bitmap: Tensor, counts: Tensor) -> None:
    """Write bools as bits, and how many are set in each segment."""
    pack_bits(marked, bitmap)
    padded = torch.nn.functional.pad(marked, (0, -marked.numel() % SEGMENT))
    counts.copy_(padded.view(counts.numel(), -1).sum(1) if counts.numel() else counts)


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
