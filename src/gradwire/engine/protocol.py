"""The comparison of the ranks at the beginning of every step, before anything is posted whose size depends on it.

The ranks compare

    * the number of the step, and of the iteration where a front end counts gradients that were computed and not
      exchanged
    * the number of times that states were loaded and methods changed
    * the configuration, with the values that a schedule has in this step
    * the step's first bucket
    * whatever else a front end or an optimizer adds

Failure modes:
    If one of these differs, all ranks raise the same error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from gradwire.engine.methods import Methods
from gradwire.engine.plan import bucket_text
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import FIRST_BUCKET, Opening

__all__ = ["StepProtocol"]


class StepProtocol:
    """The numbers of one exchange's steps, and their comparison.

    Args:
        channel: channel over which the ranks compare.
        device: device of the gradients.

    Attributes:
        step: number of the current step; 0 before the first.
        epoch: number of times that all plans were dropped, because a state was loaded or the methods changed.
        opened: true once the comparison of the current step was begun.
    """

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self.step, self.epoch = 0, 0
        self._opening, self.opened = Opening(channel, device), True
        self._facts: dict[str, Any] = {}
        self._dropped: int | None = None
        self._text: tuple[tuple[object, ...], str] = ((), "")

    def compare(self, **facts: Any) -> None:
        """Compare these values, too, from the next comparison on; a value takes the place of that of its name."""
        self._facts |= facts

    def count_dropped(self, number: int, *, anew: bool = False) -> None:
        """Add to the number of gradients that were computed and not exchanged, or count ``anew``; ranks compare it."""
        self._dropped = (0 if anew else self._dropped or 0) + number

    def restart(self, step: int) -> None:
        """Go on after a step, with new plans, because a state was loaded."""
        self.step, self.epoch = step, self.epoch + 1

    def go_to(self, step: int) -> None:
        """Count from this step on, because rounds were made up for, or undone, that no bucket went through."""
        self.step = step

    def begin(self) -> None:
        """Begin a step."""
        self.step += 1
        self.opened = False

    def open(self, methods: Methods, check: Callable[[], None] | None = None, first: Sequence[str] = ()) -> None:
        """Start to compare this step, once; further arguments as for ``Exchange.open``."""
        self.opened = True
        self._opening.begin(self.step, partial(self._describe, methods, check, tuple(first)))

    def _describe(self, methods: Methods, check: Callable[[], None] | None, first: tuple[str, ...]) -> str:
        if check is not None:
            check()
        main = methods.at(self.step)
        # Most of it is the same in every step, and is written once.
        known = main, methods, self.epoch
        if self._text[0] != known:
            self._text = known, methods.describe_step(main, generation=self.epoch)
        iteration = "" if self._dropped is None else f', "iteration": {self.step + self._dropped}'
        # Buckets of one size would be added up, whatever is in them.
        bucket = f", {bucket_fact(first)}" if first else ""
        further = f", {json.dumps(self._facts)[1:-1]}" if self._facts else ""
        return f'{{"step": {self.step}{iteration}{further}{bucket}, {self._text[1][1:]}'


@lru_cache(maxsize=64)
def bucket_fact(names: tuple[str, ...]) -> str:
    """The first bucket of a step as it stands in a JSON object; it is the same in every step."""
    return json.dumps({FIRST_BUCKET: bucket_text(names)})[1:-1]
