"""Residuals of methods that were left: they go out with the next gradients of their parameters.

Invariants:
    * The residual is added to the parameter's next gradient, and dropped when that step counts. A step that does not
      count leaves it where it was.

Why:
    The autotuner may give a parameter another method, and the new one may keep no residual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from gradwire.engine.residual_store import ResidualStore

__all__ = ["Leftovers"]


class Leftovers:
    """The parameters whose residuals wait for their next gradient.

    Args:
        residuals: store in which they lie.

    Attributes:
        waiting: names of these parameters.
    """

    def __init__(self, residuals: ResidualStore) -> None:
        self._residuals = residuals
        self.waiting: set[str] = set()
        self._sent: list[tuple[str, Tensor]] = []

    def leave(self, keeps: Callable[[str], bool]) -> None:
        """Let residuals wait whose parameter has a method now that keeps none.

        Args:
            keeps: returns whether the new method of a parameter, by its name, has a residual.
        """
        self.waiting = {name for name in self._residuals.worker.get("residual", {}) if not keeps(name)}
        # No plan will ask for these shards, and what is given up later would find no residual any more.
        self._residuals.give_up_waiting(self.waiting)

    def forget(self) -> None:
        """Let nothing wait any more: a method that was chosen by hand goes on with the residuals."""
        self.waiting = set()

    def restart(self) -> None:
        """Forget what was sent in this step, because other residuals were loaded."""
        self._sent = []

    def of(self, names: Iterable[str]) -> list[str]:
        """The names among these for which something waits."""
        return [name for name in names if name in self.waiting] if self.waiting else []

    def flush_into(self, flat: Tensor, names: Sequence[str], add: Callable[[Tensor, str, Tensor], None]) -> list[str]:
        """Add the waiting residuals to the gradients of a bucket; return the names of their parameters.

        Args:
            add: adds a stored residual to the gradient of a parameter, by name, in ``flat``.
        """
        found = self.of(names)
        for name in found:
            add(flat, name, self._residuals.worker["residual"][name])
        return found

    def sent(self, name: str, bad: Tensor) -> None:
        """Note that the leftover of a parameter was sent in this step; it stays where ``bad``."""
        self._sent.append((name, bad))

    def end(self, skipped: Callable[[], bool]) -> None:
        """Forget what was sent, unless its message, or the whole step, does not count.

        Args:
            skipped: returns whether the whole step does not count; it may wait for the device.
        """
        if not self._sent:
            return
        sent, self._sent = self._sent, []
        all_lost = skipped()
        # The flags are read when the step has ended: to read each when its message arrives would wait for the device.
        lost = {name for name, bad in sent if all_lost or bool(bad)}
        for name in {name for name, _ in sent} - lost:
            del self._residuals.worker["residual"][name]
            self.waiting.discard(name)
