"""The record of one process: what its script did so far, which models are held, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.run.holds import Hold, Plain

__all__ = ["APPLY", "PLAIN", "REPORT", "SEEN", "SENTINEL", "STOP", "VARIABLE", "WATCH", "RunSession", "say", "verdict"]

VARIABLE = "GRADWIRE_RUN"
SEEN = "GRADWIRE_RUN_SEEN"
"""The variable that names a folder in which each process of ``gradwire run`` says what it saw."""

REPORT = "GRADWIRE_RUN_REPORT"
SENTINEL = "GRADWIRE_RUN_SENTINEL"
STOP = "GRADWIRE_RUN_STOP"
"""The variable that ends the script after so many backward passes, with their times; ``gradwire try`` sets it."""

WATCH, APPLY, PLAIN = "watch", "apply", "plain"
"""Modes; in the last one, which is for trials, nothing is held."""


TOLD_AFTER = 50
"""Steps after which the paragraph may be shown, if what it says is known by then."""

TOLD_BY = 150
"""Steps after which it is shown whatever is known."""

REPORTED_EVERY = 500
"""Steps from one report to the next."""

POINTS = 1000
"""Points of a curve that are kept: where there would be more, every second one is left out from then on."""


def say(text: str) -> None:
    """Write a line on stderr, whatever the script does to its logging."""
    # Stderr may be closed, or anything else: a line is no reason for a script to end.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"gradwire run: {text}\n")
        sys.stderr.flush()


def verdict(events: set[str], steps: int, announced: bool) -> str | None:
    """Say in a sentence what was seen of a script; None: its own report has said it.

    Args:
        events: "loaded", "group", "held", "plain", "left": a Python process began, formed a group, a model of it was
            held, gradients were all-reduced without a wrapper, a model was left alone.
        steps: training steps of the first model.
        announced: true where a process has shown its paragraph.

    Example:
        >>> verdict({"loaded"}, 0, False)
        'the script never formed a process group, so nothing travelled'
        >>> verdict({"loaded", "group", "held"}, 12, False)
        'the script ended after 12 steps, before there was enough to say (some 50 steps)'
    """
    if announced or "left" in events:
        return None
    if "loaded" not in events:
        return "no Python that has gradwire installed was started: install gradwire where the script runs"
    if "group" not in events:
        return "the script never formed a process group, so nothing travelled"
    if not events & {"held", "plain"}:
        return "nothing was seen: no DistributedDataParallel, no fully_shard, no gradients that were all-reduced"
    return f"the script ended after {steps} steps, before there was enough to say (some {TOLD_AFTER} steps)"


class StepCurve:
    """Values by step; the longer it gets, the fewer of its points are kept."""

    def __init__(self) -> None:
        self.points: list[tuple[int, Any]] = []
        self._every = 1

    def add(self, step: int, value: Any) -> None:
        """Add a value, which may be a tensor on a device: nobody waits for it before it is read."""
        if step % self._every == 0:
            self.points.append((step, value))
        if len(self.points) > POINTS:
            self.points, self._every = self.points[::2], 2 * self._every

    def numbers(self) -> list[tuple[int, float]]:
        """The points as plain numbers."""
        return [(step, float(value)) for step, value in self.points]


class RunSession:
    """The part that one process has in ``gradwire run``.

    Args:
        mode: "watch" or "apply".
        speaks: true where this process itself says that it saw nothing.
    """

    def __init__(self, mode: str, *, speaks: bool = False) -> None:
        self.mode, self.speaks = mode, speaks
        self.report = Path(os.environ.get(REPORT) or "gradwire-report").absolute()
        self.sentinel = int(os.environ.get(SENTINEL) or 100)
        self.stop = int(os.environ.get(STOP) or 0)
        self.events: set[str] = set()
        self.begin()
        self.event("loaded")
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Begin with nothing, at the start or in a process that was forked from one that has begun."""
        self.pid, self.begun, self.finished, self.announced = os.getpid(), time.time(), False, False
        self.speaks = self.speaks and not self.events
        self.events = {"loaded"} if self.events else set()
        self.holds: list[Hold] = []
        self._next_report = 0
        self.plain: Plain | None = None
        self.notes: list[str] = []
        self.loss = StepCurve()
        self.passes: list[tuple[float, Any]] = []
        """The time at which each backward pass of a trial ended, and its loss."""

    @property
    def steps(self) -> int:
        """The training steps so far: those of the model with the most, after those of models that ended before it."""
        if not self.holds:
            return self.plain.steps if self.plain is not None else 0
        return max(each.begun_at + each.steps for each in self.holds)

    @property
    def apply(self) -> bool:
        """True where what is found is compressed."""
        return self.mode == APPLY

    def event(self, name: str, detail: object = "") -> None:
        """Note what happened, and tell ``gradwire run``, which may have started this process."""
        if name in self.events and not detail:
            return
        self.events.add(name)
        folder = os.environ.get(SEEN)
        if folder:
            with contextlib.suppress(OSError), Path(folder, str(self.pid)).open("a", encoding="utf-8") as file:
                file.write(f"{name} {detail}\n")

    def note(self, text: str, *, first: bool = True) -> None:
        """Say something about the script, on the rank that is the first, and keep it for the report."""
        self.notes.append(text)
        if first:
            say(text)

    def leave(self, text: str, *, first: bool) -> None:
        """Say as ``note`` does that something is left alone."""
        self.event("left")
        self.note(text, first=first)

    def hold(self, made: Hold) -> None:
        """Take a model; from now on there is something to report at the end of this process."""
        if not self.holds:
            from multiprocessing.util import Finalize

            # Processes of multiprocessing call no ``atexit`` functions, and these forget the parent's.
            Finalize(None, self.finish, exitpriority=100)
            if made.speaker:
                # Groups of which the first rank is none may be several, with a report each.
                self.report = self.report.with_name(f"{self.report.name}-rank{made.speaker}")
        elif all(each.state is None for each in self.holds):
            made.begun_at = self.steps
        self.holds.append(made)
        self.event("held")

    def after_backward(self, loss: Any) -> None:
        """Look after a backward pass whether a step is complete.

        Args:
            loss: scalar, detached, from which it began; None: it began from something else.
        """
        if self.stop:
            self._count(loss)
        moved = [each.advance() for each in self.holds]
        if loss is not None and (any(moved) or not self.loss.points):
            self.loss.add(self.steps, loss)
        if any(moved):
            self.look()

    def _count(self, loss: Any) -> None:
        """Note a backward pass of a trial; after the last one this process ends at once, as the others do."""
        self.passes.append((time.perf_counter(), loss))
        if len(self.passes) < self.stop:
            return
        if os.environ.get("RANK", "0") == "0":
            from gradwire._files import replace_text

            told = {
                "times": [when for when, _ in self.passes],
                "losses": [None if each is None else float(each) for _, each in self.passes],
                "models": [each.facts() for each in self.holds],
                "checks": [row for each in self.holds for row in each.checks],
            }
            replace_text(self.report, json.dumps(told))
        sys.stdout.flush()
        os._exit(0)

    def look(self) -> None:
        """Show the paragraph when there is enough to say, and write the report now and then."""
        due = self.steps >= TOLD_AFTER and (self.steps >= TOLD_BY or all(each.known for each in self.holds))
        if due and not self.announced:
            self.tell()
        elif self.announced and self.steps >= self._next_report:
            self._next_report = self.steps + REPORTED_EVERY
            self.write()

    def tell(self) -> None:
        """Show the paragraph; other ranks leave that to the first."""
        self.announced, self._next_report = True, self.steps + REPORTED_EVERY
        # Also where another rank speaks: whoever started this process may be on another machine than that rank.
        self.event("told")
        self.write(paragraph=True)

    @property
    def _speaks(self) -> bool:
        """True where this process is the one of the ranks of its first model that reports."""
        return self.holds[0].first if self.holds else self.plain is not None and self.plain.first

    def write(self, *, paragraph: bool = False) -> None:
        """Write the report, on the first rank alone."""
        if not self._speaks:
            return
        from gradwire.run.report import paragraph_of, report_of, write_report

        try:
            made = report_of(self)
            if paragraph:
                say(paragraph_of(made))
            write_report(made, self.report)
            if self.finished and self.announced:
                say(f"{self.report}.html and .json have the figures of {self.steps} steps")
        except Exception as error:  # A report is no reason for a script to end.
            say(f"the report could not be written: {type(error).__name__}: {error}")

    def finish(self) -> None:
        """End: write the report, and say in one line what was seen if nothing else has said it."""
        if self.finished or os.getpid() != self.pid:
            return
        self.finished = True
        if self.steps:
            self.event("steps", self.steps)
            if not self.announced and self.steps >= TOLD_AFTER:
                self.tell()
            else:
                self.write()
            for each in self.holds:
                each.release()
        said = verdict(self.events, self.steps, self.announced)
        mine = os.environ.get("RANK", "0") == "0" and (self.speaks or bool(self.holds))
        if said is not None and mine and not os.environ.get(SEEN):
            say(said)
