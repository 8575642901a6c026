"""Goals for the speed of a codec, and the rows of ``gradwire_lab.bench.codec`` that miss them.

In units of the triad that moves the fewest bytes: 0.60 where one pass over memory is enough; 0.50 where the first code
needs something of the whole tensor, which is a second pass; 0.40, or 2.5 passes, where the payload names elements.
And no more than 10 ns for an element, where the cost is not that of a factorisation or a sketch.

The goals are for large tensors, so every operation is judged at the largest size at which it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire_lab.bench.steps import STEPS

__all__ = ["NANOSECONDS", "Miss", "judged", "least_ratio", "misses", "nanoseconds"]

NANOSECONDS = 10.0
"""The most that a call may take for each element of each payload."""

ONE_PASS, TWO_PASSES, NAMED = 0.60, 0.50, 0.40

Row = dict[str, Any]

_SHAPE = (1024, 1024)
_PAYLOADS = {step.name: step.ranks for step in STEPS}


@dataclass(frozen=True)
class Miss:
    """A row that misses a goal, with the goal and the ratio by which it is missed.

    Args:
        row: row as it was measured.
        reason: explanation for a reader.
    """

    row: Row
    reason: str


def nanoseconds(row: Row) -> float:
    """Nanoseconds of one call for each element of the tensor."""
    return float(1e9 * row["seconds"] / row["size"])


def judged(rows: Sequence[Row]) -> list[Row]:
    """Keep the row of each operation of each method at the largest size at which it was measured."""
    largest: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = row["method"], repr(row["params"]), row["op"]
        if "seconds" in row and row["size"] >= largest.get(key, row)["size"]:
            largest[key] = row
    return list(largest.values())


def misses(rows: Sequence[Row]) -> list[Miss]:
    """Find the rows that count and miss a goal, in their order; a row that misses both goals comes twice."""
    return [Miss(row, reason) for row in judged(rows) for reason in _reasons(row)]


def least_ratio(compressor: Compressor) -> float:
    """The goal for a method's operations, in units of the triad.

    >>> from gradwire.compressors.ternary.terngrad import TernGrad
    >>> from gradwire.compressors.sparse.topk import TopK
    >>> from gradwire.compressors.ternary.twobit import TwoBit
    >>> least_ratio(TwoBit()), least_ratio(TernGrad()), least_ratio(TopK())
    (0.6, 0.5, 0.4)
    """
    layout = compressor.layout(_SHAPE)
    if compressor.family == "sparsification" or layout.count("indices", "counts"):
        return NAMED
    one_number = any(field.count == 1 and field.dtype is torch.float32 for field in layout.fields)
    whole = compressor.alignment == 0 or capabilities.rounds_needed(compressor) > 1 or not compressor.fixed_size
    return TWO_PASSES if one_number or whole else ONE_PASS


def _reasons(row: Row) -> list[str]:
    compressor = registry.build("compressors", row["method"], row["params"])
    ratio, goal = row["triad_ratio"], least_ratio(compressor)
    each = nanoseconds(row) / _PAYLOADS[row["op"]]
    slow = each > NANOSECONDS and not capabilities.factorises(compressor)
    far = [f"{ratio:.2f} of the triad, goal {goal:.2f}"] if ratio < goal else []
    return far + ([f"{each:.1f} ns an element, goal {NANOSECONDS:g}"] if slow else [])
