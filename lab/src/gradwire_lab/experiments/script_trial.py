"""Trials of a user's own script: plain and compressed in turns, on the same shaped link.

Invariants:
    * Both are the same script in fresh processes, which end after the same number of backward passes.
    * In a plain turn nothing is hooked, and a clock is read after each pass.
    * The last third of the passes of a turn counts, in which a method was chosen, if one is at all.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gradwire.errors import ConfigError, require
from gradwire.run.page import curve, document, table
from gradwire.run.session import APPLY, PLAIN, REPORT, SENTINEL, STOP, VARIABLE, WATCH
from gradwire_lab.netlab import Netlab
from gradwire_lab.netlab.each_worker import run_all

__all__ = ["FEWEST", "Trial", "TrialTurn", "page_of_trial", "try_script"]

FEWEST = 12
"""Steps of a turn at least, so that its last third has a median."""


@dataclass(frozen=True)
class TrialTurn:
    """One run of the script.

    Args:
        mode: "plain", "watch" or "apply".
        seconds: median seconds of a step in the last third: from one backward pass to the next, or to that after so
            many as a step has.
        loss: mean loss of the last tenth; None: it was no scalar.
        times: seconds from one backward pass to the next.
        losses: loss of each pass.
        switched: step by which all models had a method; None: one of them had none.
        checks: means that were also made exactly.
        wrong: those of them that were out of bounds.
        proposed: seconds of a step that "auto" expected of what it would choose, where it only watched; None: it had
            nothing to say.
        late: true where a model had no method before the steps that count.
    """

    mode: str
    seconds: float
    loss: float | None
    times: tuple[float, ...]
    losses: tuple[float | None, ...]
    switched: int | None
    checks: int
    wrong: int
    proposed: float | None = None
    late: bool = False


@dataclass(frozen=True)
class Trial:
    """All turns of a script on a link, one of each mode and then again."""

    link: str
    turns: tuple[TrialTurn, ...]

    @property
    def ratios(self) -> list[float]:
        """By what factor the compressed turn of each pair was faster than the plain one."""
        plain, other = ([turn.seconds for turn in self.turns if turn.mode == each] for each in (PLAIN, APPLY))
        return [before / after for before, after in zip(plain, other, strict=True)]

    @property
    def changed(self) -> bool:
        """True where every compressed turn had chosen what to compress before the steps that count."""
        return not any(turn.late for turn in self.turns if turn.mode == APPLY)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and words."""
        return {"link": self.link, "ratios": self.ratios, "turns": [asdict(turn) for turn in self.turns]}


def try_script(
    lab: Netlab,
    command: Sequence[str],
    *,
    steps: int,
    turns: int,
    link: str,
    modes: Sequence[str] = (PLAIN, APPLY),
    passes: int = 1,
    progress: Callable[[str], object] = lambda _: None,
) -> Trial:
    """Run a script plain and compressed by turns.

    Args:
        lab: lab whose workers run it, with what torchrun would set.
        command: command of one worker.
        steps: backward passes of a turn, >= 12.
        turns: number of rounds, >= 1.
        link: link of the lab, in words.
        modes: modes of the turns of a round, the plain one among them.
        passes: backward passes of a step, >= 1.
        progress: function that is called with a line before each run.

    Raises:
        ConfigError: the script failed, or ended before it had made so many steps.
    """
    require(steps >= FEWEST, "steps", f"an integer >= {FEWEST}", steps)
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(turns):
            # Forth and back, so that a machine that becomes slower or faster disturbs no mode more than another.
            for mode in modes if number % 2 == 0 else reversed(modes):
                progress(f"turn {number + 1} of {turns}: {mode}")
                made.append(_turn(lab, command, mode, steps, passes, Path(folder, f"{number}{mode}.json")))
    return Trial(link, tuple(made))


def _turn(lab: Netlab, command: Sequence[str], mode: str, steps: int, passes: int, file: Path) -> TrialTurn:
    own = {VARIABLE: mode, STOP: str(steps), REPORT: str(file), SENTINEL: "20"}
    # By this variable trainers such as Lightning's see that somebody else has started the workers, as torchrun does.
    own["TORCHELASTIC_RUN_ID"] = "gradwire"
    code = run_all(lab, command, own)
    if code:
        raise ConfigError(f"COMMAND must train, got one that ended with exit status {code} in a {mode} turn")
    if not file.exists():
        raise ConfigError(f"COMMAND must make {steps} backward passes, got one that ended before: give fewer --steps")
    told = json.loads(file.read_text(encoding="utf-8"))
    times = [after - before for before, after in pairwise(told["times"])]
    losses, deciding = told["losses"], [each for each in told["models"] if each.get("decisions")]
    known = [loss for loss in losses[-max(1, steps // 10) :] if loss is not None]
    switches = [_first_method(each["decisions"]["decisions"]) for each in deciding]
    # A model may exchange in some of the passes only.
    paces = [steps / max(1, each["exchanges"]) for each in deciding]
    times_of = zip(switches, paces, strict=True)
    late = not deciding or any(at is None or at * pace > steps - steps // 3 for at, pace in times_of)
    return TrialTurn(
        mode,
        median(_sums(times, passes)[-max(1, steps // 3) :]),
        fmean(known) if known else None,
        tuple(times),
        tuple(losses),
        None if None in switches else max(filter(None, switches), default=None),
        len(told["checks"]),
        sum(not each["kept"] for each in told["checks"]),
        _proposed(told["models"]) if mode == WATCH else None,
        late,
    )


def _first_method(decisions: Sequence[dict[str, Any]]) -> int | None:
    """The step of the first decision to compress something; None: there was none."""
    return next((each["step"] for each in decisions if each["choices"] or each.get("weights")), None)


def _sums(times: Sequence[float], passes: int) -> list[float]:
    """The seconds from each backward pass to that after so many: those of a step, wherever it begins.

    >>> _sums([1.0, 3.0, 1.0, 3.0], 2)
    [4.0, 4.0, 4.0]
    """
    return [sum(times[i : i + passes]) for i in range(len(times) - passes + 1)]


def _proposed(models: Sequence[dict[str, Any]]) -> float | None:
    """The seconds of a step that were expected of the only model; None: of none, or of several, whose steps overlap."""
    known = [each["proposal"] for each in models if each.get("proposal")]
    return float(known[0]["seconds"]) if len(models) == 1 and known else None


def page_of_trial(trial: Trial) -> str:
    """Make a page of a trial that needs nothing else."""
    rows = [
        (
            turn.mode,
            f"{1e3 * turn.seconds:,.4g} ms",
            "" if turn.loss is None else f"{turn.loss:.4g}",
            "" if turn.switched is None else str(turn.switched),
            f"{turn.checks - turn.wrong} of {turn.checks}",
        )
        for turn in trial.turns
    ]
    middle = math.prod(trial.ratios) ** (1 / len(trial.ratios))
    said = f"{middle:.2f} times as fast with gradwire on {trial.link}; pairs from {min(trial.ratios):.2f} to "
    parts = ["<h1>gradwire try</h1>", f"<p>{said}{max(trial.ratios):.2f}</p>"]
    parts.append(table(("turn", "a step", "loss in the end", "compressed from step", "means within bounds"), rows))
    for turn in trial.turns:
        parts.append(curve(f"Seconds of a backward pass, {turn.mode}", list(enumerate(turn.times, 1)), zero=True))
        known = [(step, loss) for step, loss in enumerate(turn.losses, 1) if loss is not None]
        parts.append(curve(f"Loss, {turn.mode}", known))
    return document("gradwire try", parts)
