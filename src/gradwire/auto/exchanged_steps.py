"""Advice for links on which gradients bear no code that is small enough: exchange the steps of the optimizer.

Law: this is another algorithm, with moments on each rank that the others do not have, so that it cannot take turns with
an exchange of gradients (docs/design.md): it is named, with what it was measured to cost, and not switched to.
``exchanged_steps.toml`` beside this file has the figures.
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


def advice(share: float, budget: str) -> str:
    """Advice for a step that waits.

    Args:
        share: share of the step that waits for the exchange, 0 to 1.
        budget: name of the budget of errors.

    Example:
        >>> advice(0.75, "safe")[:80]
        "the step still waits for the exchange for 75 % of its time, and budget 'safe' ha"
    """
    known = figures()
    worse = known["loss"] / known["uncompressed_loss"] - 1
    return (
        f"the step still waits for the exchange for {100 * share:.0f} % of its time, and budget {budget!r} has nothing "
        "faster for gradients under this optimizer. Its steps bear fewer bytes: "
        f"gradwire.CompressedStep(optimizer, {known['compressor']!r}, bits={known['bits']}) in place of what averages "
        f"gradients sent {known['fewer_bytes']:.0f} times fewer bytes than no compression in a small GPT with two "
        f"workers, for {100 * worse:.1f} % more loss in 200 steps, and for none with four and eight (one seed each); "
        "larger models send still fewer (docs/auto.md#exchanged-steps)"
    )
