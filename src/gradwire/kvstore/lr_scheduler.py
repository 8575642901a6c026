"""Learning rates that fall at given steps."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.errors import is_float32, is_int, require

__all__ = ["MultiFactorScheduler"]


class MultiFactorScheduler:
    """``base_lr * factor^k`` once k of the given numbers of updates have been made.

    Args:
        step: numbers of updates, each larger than the one before it.
        factor: in (0, 1].
        base_lr: before the first of them; ``Module.fit`` puts the optimizer's ``learning_rate`` here.

    Raises:
        ConfigError: steps that do not grow, or a factor outside its range.

    Example:
        >>> scheduler = MultiFactorScheduler([2, 4], factor=0.5, base_lr=1.0)
        >>> [scheduler(update) for update in (1, 2, 3, 4, 5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, step: Sequence[int], factor: float = 1.0, base_lr: float = 0.01) -> None:
        grows = all(is_int(each, 1) for each in step) and list(step) == sorted(set(step))
        require(bool(step) and grows, "step", "integers >= 1, each larger than the one before it", step)
        require(is_float32(factor) and 0 < factor <= 1, "factor", "in (0, 1]", factor)
        self.step, self.factor, self.base_lr = list(step), factor, base_lr

    def __call__(self, num_update: int) -> float:
        """The rate of an update, counted from 1."""
        return float(self.base_lr * self.factor ** sum(num_update > each for each in self.step))
