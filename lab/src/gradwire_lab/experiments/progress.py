"""Progress bars of runs, on standard error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gradwire_lab.experiments.records import Point
from gradwire_lab.experiments.tasks.base import Task

__all__ = ["Bar", "Bars", "Stages"]


class Bars:
    """Progress bars, one for each method; nothing is shown unless ``shown``.

    Args:
        steps: number of steps of each method.
        shown: true: draw; one worker does.
    """

    def __init__(self, steps: int, *, shown: bool) -> None:
        self.steps = steps
        self.progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )

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


class Bar:
    """The progress bar of one run, with a line for each epoch; nothing is shown unless ``shown``.

    Args:
        task: task that is trained.
        label: label of the run.
        epochs: number of epochs of the run.
        shown: true: draw; one worker does.
    """

    def __init__(self, task: Task, label: str, epochs: int, *, shown: bool) -> None:
        self.task, self.epochs, self.shown = task, epochs, shown
        self.before = Point(0, 0, 0.0, 0.0, 0.0, 0.0)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True, markup=False, highlight=False),
            disable=not shown,
        )
        self.bar = self.progress.add_task(label, total=task.steps(epochs), loss="...", rate="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def step(self, step: int, loss: float) -> None:
        """Note a finished step."""
        if self.shown:
            speed = self.progress.tasks[0].speed or 0.0
            rate = f"{self.task.recipe.batch * speed:,.0f} examples/s"
            self.progress.update(self.bar, completed=step + 1, loss=f"{loss:.3f}", rate=rate)

    def point(self, point: Point) -> None:
        """Note the end of an epoch."""
        if not self.shown:
            return
        seconds, steps = point.seconds - self.before.seconds, point.step - self.before.step
        rate = self.task.recipe.batch * steps / max(seconds, 1e-9)
        self.before = point
        quality = f"{self.task.measure} {self.task.shown(point.quality)}"
        self.progress.console.print(
            f"epoch {point.epoch}/{self.epochs}: loss {point.loss:.3f}, {quality}, {rate:,.0f} examples/s, "
            f"{point.bytes_sent / 1e6:,.3f} MB sent by a worker",
            soft_wrap=True,
        )


class Stages:
    """A display of the stage of a long job and of its duration; nothing is shown without a terminal.

    Args:
        seconds: seconds that the job takes at most.
    """

    def __init__(self, seconds: float) -> None:
        console = Console(stderr=True, markup=False)
        # Seldom: it must not take time from what is timed meanwhile.
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn(f"of {seconds:g} s"),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=2,
            transient=True,
        )
        self.task = self.progress.add_task("")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.progress.update(self.task, description=stage)
