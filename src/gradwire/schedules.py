"""Functions of the step for ``schedule=``: how a ratio, a threshold or a rank moves during training."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradwire.engine.policy import Schedule
from gradwire.errors import is_float32, is_int, is_number, require

__all__ = ["dgc_warmup", "exponential", "linear", "stages"]


def dgc_warmup(final: float = 0.001, steps_per_epoch: int = 1, epochs: int = 4) -> Schedule:
    """The ratio of deep gradient compression: in epoch e = 0, 1, ... it is final^((e + 1) / (epochs + 1)).

    Args:
        final: ratio after the warm-up, in (0, 1].
        steps_per_epoch: optimizer steps in an epoch.
        epochs: length of the warm-up. The paper's is 4: 25 %, 6.25 %, 1.5625 %, 0.4 %, then 0.1 %.

    >>> [round(dgc_warmup(0.001, steps_per_epoch=10)(step), 4) for step in (0, 9, 10, 39, 40, 100)]
    [0.2512, 0.2512, 0.0631, 0.004, 0.001, 0.001]

    Source:
        Y. Lin et al., "Deep Gradient Compression", ICLR 2018.
    """
    require(is_float32(final) and 0 < final <= 1, "dgc_warmup.final", "in (0, 1]", final)
    require(is_int(steps_per_epoch, 1), "dgc_warmup.steps_per_epoch", "an integer >= 1", steps_per_epoch)
    require(is_int(epochs, 0), "dgc_warmup.epochs", "an integer >= 0", epochs)
    return lambda step: final ** (min(step // steps_per_epoch + 1, epochs + 1) / (epochs + 1))


def linear(start: float, end: float, steps: int) -> Schedule:
    """A schedule from ``start`` to ``end`` in ``steps`` equal steps, then constant.

    >>> [linear(1.0, 0.0, 4)(step) for step in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    require(is_number(start), "linear.start", "a finite number", start)
    require(is_number(end), "linear.end", "a finite number", end)
    require(is_int(steps, 1), "linear.steps", "an integer >= 1", steps)
    return lambda step: start + (end - start) * min(step / steps, 1.0)


def exponential(start: float, end: float, steps: int, stages: int = 5) -> Schedule:
    """A schedule from ``start`` to ``end`` by equal factors in ``stages`` stages over ``steps`` steps, then constant.

    Stages keep the number of different payload sizes, and so of new buffers, small.

    >>> [round(exponential(0.25, 0.01, 100, stages=2)(step), 4) for step in (0, 49, 50, 100)]
    [0.25, 0.25, 0.05, 0.01]

    Source:
        Y. Lin et al., "Deep Gradient Compression", ICLR 2018, for the warm-up of a sparsity.
    """
    require(is_float32(start) and start > 0, "exponential.start", "a finite number > 0", start)
    require(is_float32(end) and end > 0, "exponential.end", "a finite number > 0", end)
    require(is_int(steps, 1), "exponential.steps", "an integer >= 1", steps)
    require(is_int(stages, 1), "exponential.stages", "an integer >= 1", stages)
    return lambda step: start * math.exp(math.log(end / start) * min(step * stages // steps, stages) / stages)


def stages(values: Mapping[int, float]) -> Schedule:
    """A schedule that changes value at each given step.

    >>> [stages({0: 0.1, 10: 0.01})(step) for step in (0, 9, 10)]
    [0.1, 0.1, 0.01]
    """
    complete = isinstance(values, Mapping) and 0 in values and all(is_int(step, 0) for step in values)
    require(complete, "stages.values", "a mapping from steps >= 0 to values, with one for step 0", values)
    ordered = sorted(values.items(), reverse=True)
    return lambda step: next(value for begin, value in ordered if step >= begin)
