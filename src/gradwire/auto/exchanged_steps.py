"""Advice for links on which gradients bear no code that is small enough: exchange the steps of the optimizer.

Invariants:
    The autotuner names this with what it was measured to cost, and never switches to it. ``exchanged_steps.toml``
    beside this file has the figures.

Why:
    It is another algorithm, with moments on each rank that the others do not have. So it cannot take turns with an
    exchange of gradients (docs/design.md).
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["EXPOSED_SHARE", "FILE", "advice", "figures"]

FILE = Path(__file__).with_suffix(".toml")

EXPOSED_SHARE = 0.5
"""The share of a step that waits for the exchange, from which on the advice is given."""


@cache
def figures() -> dict[str, Any]:
    """The settings of the optimizer that was measured, and what it cost."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def advice(share: float) -> str:
    """Advice for a step that waits.

    Args:
        share: share of the step that waits for the exchange, 0 to 1.

    Example:
        >>> advice(0.75).rpartition(" (")[0]
        '75 % of a step still waits: gradwire.CompressedStep(bits=0.125) sends 49 times fewer bytes'
    """
    fewer = f"gradwire.CompressedStep(bits=0.125) sends {figures()['fewer_bytes']:.0f} times fewer bytes"
    return f"{100 * share:.0f} % of a step still waits: {fewer} (docs/auto.md#exchanged-steps)"
