"""Measurement of how much compression lengthens the averaged gradients, made at intervals beside an uncompressed mean.

    factor = |arrived| / |mean|, the lengths over all tensors together

Invariants:
    * All ranks find the same factor, to the bit, whatever the strategy, because a sample of each tensor is averaged
      once more without compression.
    * It is measured in steps 1, 2, 4, ... and then in every ``EVERY``-th. Measuring begins anew behind a step in which
      the factor was far from the one before: one step of large noise, or of gradients that cancel, must not count for
      long.
    * The cost grows with the number of tensors (two norms each) and with 1 / ``SHARE`` of the elements, and not with
      the number of workers.

Why:
    A code that is right on average adds its own noise to the mean gradient. Adam divides by the root mean square of
    what arrives, which is r times as large as without the code, so its steps are 1 / r times as long. Tensors differ in
    r, as the ranks' gradients have much in common or little. One factor is measured over all tensors together, because
    the mean of their r is larger than that, and is so most where gradients are large: for half a bit in a GPT it was
    1.8 in place of 1.3 in the first steps. The loss was 4 % higher for that after 100 steps, because biases, norms and
    the embedding made steps that were too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.dense import DenseSession
from gradwire.transport.channel import Channel

__all__ = ["EVERY", "LEAST", "MOST", "SHARE", "SecondMoment"]

EVERY = 128
"""Steps from one measurement to the next, after the first ones."""

SHARE = 64
"""The sample of a tensor has one in so many of its elements."""

LEAST = 1024
"""Elements of a sample, where the tensor has as many."""

MOST = 4.0
"""The largest factor. A code whose noise is larger than that would make Adam's steps mostly noise."""

_FAR = 1.5
"""The ratio of a measured factor to the one of before, or its inverse, from which on the next step is measured."""

_TURN = (math.sqrt(5) - 1) / 2


class SecondMoment:
    """The factor of one exchange, over its compressed tensors.

    Args:
        device: device of the gradients.
        since: the first steps, of which nothing is measured: the dense ones.

    Example:
        >>> moment = SecondMoment(torch.device("cpu"))
        >>> [step for step in range(1, 300) if moment.due(step)]
        [1, 2, 4, 8, 16, 32, 64, 128, 256]
        >>> moment.factor
        1.0
    """

    def __init__(self, device: torch.device, since: int = 0) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._measured = False
        self._before: float | None = None
        self._first = self._since = since

    @property
    def factor(self) -> float:
        """The length of the received mean over that of the exact mean, from 1 to ``MOST``; 1 before it was measured."""
        return min(max(self._latest() or 1.0, 1.0), MOST)

    def due(self, step: int) -> bool:
        """Return whether ``step`` is measured, counted from the dense steps, the last ``restart`` or a far factor."""
        step -= self._since
        return step % EVERY == 0 if step > EVERY else step > 0 and step & (step - 1) == 0

    def restart(self, step: int) -> None:
        """Forget the measurements up to ``step``, because gradients are sent in another way from the next one on."""
        self.load_state_dict({"since": max(step, self._first)})

    def changed(self, step: int) -> None:
        """Measure anew in ``step``, from which on a schedule sends another layout; each bucket may call it."""
        if self._since != step - 1 or self._before is not None:
            self.restart(step - 1)

    def begin(
        self, flat: Tensor, spans: Sequence[tuple[int, int]], step: int, channel: Channel, owned: slice | None = None
    ) -> Callable[[Tensor, int, float], None]:
        """Start to average a sample of a gradient without compression, before the gradient is exchanged.

        Args:
            flat: the gradient, contiguous float32.
            spans: range of each compressed tensor in the gradient: first element, and the one behind the last.
            owned: slice of the spans whose mean arrives on this rank alone; None: all of them arrive on all ranks.

        Returns:
            A function that compares the sample with what has arrived. It takes the tensor in which that is, the place
            in ``flat`` of its first element, and the number by which the mean was multiplied.
        """
        least = LEAST if owned is None else LEAST // channel.world  # A tensor has a span for each owner.
        places = [_place(lo, hi, step, least) for lo, hi in spans]
        sample = torch.cat([flat[lo:hi] for lo, hi in places])
        mean = DenseSession([(0, sample.numel())], channel, sample.device)
        # Started before the gradient is exchanged, so that both travel at the same time.
        mean.begin(sample)

        def compare(arrived: Tensor, start: int, multiplied: float) -> None:
            mean.arrive()
            mine = slice(None) if owned is None else owned
            exact = torch.split(sample, [hi - lo for lo, hi in places])[mine]
            there = [arrived[lo - start : hi - start] for lo, hi in places[mine]]
            # A sample stands for its whole tensor.
            shares = [(hi - lo) / max(len(part), 1) for (lo, hi), part in zip(spans[mine], exact, strict=True)]
            weights = torch.tensor(shares, dtype=torch.float64, device="cpu").to(sample.device)
            squares = torch.stack([_squares(there), _squares(exact)])
            squares[0] /= multiplied * multiplied
            # Squares that are not finite do not count.
            known = torch.isfinite(squares).all(0)
            found = torch.where(known, squares * weights, 0.0).sum(1)
            if owned is not None:
                # A rank has seen its own part of the mean only, and all must find the same factor.
                channel.all_reduce(found)
            self._sums += found
            self._measured = True

        return compare

    def end_step(self, step: int) -> None:
        """Add the measurement of ``step`` to the known factor."""
        if not self._measured:
            return
        before, now = self._before, self._now()
        # A factor below 1 is not used.
        if before is not None and now is not None and not 1 / _FAR < max(now, 1.0) / max(before, 1.0) < _FAR:
            self._since = step
        self._before = self._with(now)
        self._sums.zero_()
        self._measured = False

    def state_dict(self) -> dict[str, Any]:
        """Return numbers on which all ranks agree."""
        return {"before": self._latest(), "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self._sums.zero_()
        self._measured = False
        self._before, self._since = state.get("before"), int(state.get("since", self._since))

    def _latest(self) -> float | None:
        """The mean of this step's measurement and the earlier ones; it waits for a GPU in measured steps only."""
        return self._with(self._now())

    def _now(self) -> float | None:
        """This step's measurement, if there is one that says something."""
        if not self._measured:
            return None
        arrived, exact = map(float, self._sums.tolist())
        # There was no gradient, or the ranks' gradients cancelled, which says nothing.
        return None if exact == 0 else min(math.sqrt(arrived / exact), MOST)

    def _with(self, now: float | None) -> float | None:
        """The earlier measurements and this one: half of each."""
        return self._before if now is None else now if self._before is None else (now + self._before) / 2


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each tensor."""
    return torch.stack(torch._foreach_norm(list(tensors))).double().square()


def _place(lo: int, hi: int, step: int, least: int) -> tuple[int, int]:
    """The position of a tensor's sample; it moves from step to step."""
    size = min(hi - lo, max(least, (hi - lo) // SHARE))
    lo += int(step * _TURN % 1 * (hi - lo - size + 1))
    return lo, lo + size
