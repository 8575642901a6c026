"""Progress bars of a run with several methods, on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Bars"]


class Bars:
    """One bar for each method; nothing at all unless ``shown``.

    Args:
        steps: of each method.
        shown: whether to draw; one worker does.
    """

    def __init__(self, steps: int, *, shown: bool) -> None:
        self.steps = steps
        self.progress = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn(),
            console=Console(stderr=True), disable=not shown,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, name: str) -> Callable[[int, float], None]:
        """Start a bar; call the result with each finished step and its loss."""
        bar = self.progress.add_task(name, total=self.steps, loss="...")

        def show(step: int, loss: float) -> None:
            self.progress.update(bar, completed=step + 1, loss=f"{loss:.3f}")

        return show
