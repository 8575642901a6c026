"""Quality of each method as it is known: the table of docs/methods/convergence.md, for programs.

Invariants:
    ``convergence.json`` beside this file is the one place where those figures are kept; ``make convergence`` writes it
    and the table from the same runs. A test compares the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gradwire_lab.experiments.recommended import setup_of

__all__ = ["FILE", "Quality", "drop_in", "quality", "table"]

FILE = Path(__file__).with_name("convergence.json")


@dataclass(frozen=True)
class Quality:
    """Final quality of a method on the digits, beside uncompressed training with the same seeds.

    Args:
        workers: number of workers of that run.
        accuracy: mean over the seeds, in [0, 1].
        points: difference to uncompressed training, in hundredths of the test set.
        reached: true: the run ended within the tolerance of the check, 2 points.
    """

    workers: int
    accuracy: float
    points: float
    reached: bool


@cache
def table() -> tuple[dict[str, Any], ...]:
    """All rows, as ``gradwire check convergence --json`` writes them, or fewer of their columns."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


def quality(label: str, workers: int = 4) -> Quality | None:
    """The quality of a method with its recommended settings; None if it was never trained with them.

    Args:
        label: name in ``gradwire_lab.experiments.recommended``.
        workers: the run with the nearest number of them is taken.

    Example:
        >>> quality("twobit:threshold=auto").reached
        True
        >>> quality("twobit:threshold=7") is None
        True
    """
    rows = [row for row in table() if row["method"] == label]
    if not rows:
        return None
    row = min(rows, key=lambda row: abs(row["workers"] - workers))
    return Quality(*(row[name] for name in ("workers", "accuracy", "points", "reached")))


def drop_in(label: str) -> bool:
    """Return whether a method trains with the loss and the optimizer unchanged."""
    setup = setup_of(label)
    return setup.loss_scale == 1.0 and not setup.recipe
