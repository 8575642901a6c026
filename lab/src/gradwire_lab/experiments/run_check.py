"""A dozen training scripts, none of which knows gradwire, on several links: plain, watched and compressed in turns.

Invariants:
    * All turns of a cell are fresh processes of the same script on the same shaped link, and end after the same number
      of backward passes. The last third of a turn counts, in whole steps, which may have several passes.
    * What is predicted is what "auto" says of a step in a watched turn, before anything is compressed; it is compared
      with the compressed turns of the same cell.
    * Ratios are made within a round, so a disturbance that lasts for a round falls on both sides of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from gradwire.errors import ConfigError
from gradwire.run.session import APPLY, PLAIN, WATCH
from gradwire_lab.bench.statistics import quantile
from gradwire_lab.experiments.script_trial import Trial, try_script
from gradwire_lab.netlab import Netlab
from gradwire_lab.netlab.link import Link

__all__ = [
    "CLOSE",
    "LINKS",
    "SCRIPTS",
    "SLOWER",
    "WATCHING",
    "RunCell",
    "RunVerdict",
    "UserScript",
    "in_words",
    "measure_run",
    "needed",
    "verdict_of",
]

FOLDER = Path(__file__).with_name("run_scripts")


class UserScript(NamedTuple):
    """A script as somebody has written it.

    Attributes:
        packages: packages that it needs beside torch.
        passes: backward passes of one step: of the batches whose gradients it accumulates, or of several models.
    """

    packages: tuple[str, ...] = ()
    passes: int = 1


SCRIPTS = {
    "ddp": UserScript(),
    "fsdp": UserScript(),
    "nanogpt": UserScript(passes=2),
    "gan": UserScript(passes=2),
    "no_sync": UserScript(passes=3),
    "compiled": UserScript(),
    "unused": UserScript(),
    "own_hook": UserScript(),
    "accelerate_loop": UserScript(("accelerate",)),
    "hf_trainer": UserScript(("transformers", "accelerate")),
    "lightning_fit": UserScript(("lightning",)),
    "titan": UserScript(("torchtitan", "datasets")),
}
"""The scripts of the folder ``run_scripts``."""

LINKS = ("none", "1gbit", "100mbit")

SLOWER, CLOSE, WATCHING = 0.02, 0.1, 0.01
"""The goals: how much slower than plain a compressed step may be, how far a prediction may lie from what is measured,
and how much slower a watched step may be, as shares."""


@dataclass(frozen=True)
class RunCell:
    """One script on one link.

    Args:
        script: name in ``SCRIPTS``.
        link: rate and delay, such as "100mbit" or "50mbit+20ms"; "none": no limit.
        workers: number of workers, >= 2.
        steps: backward passes of a turn, >= 12.
        turns: number of rounds, >= 1.
    """

    script: str
    link: str
    workers: int = 2
    steps: int = 150
    turns: int = 3

    @property
    def id(self) -> str:
        """A name for the cell that changes with what is measured."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def needed(script: str) -> list[str]:
    """List the packages that a script needs and that are not installed.

    >>> needed("ddp")
    []
    """
    return [name for name in SCRIPTS[script].packages if find_spec(name) is None]


def measure_run(cell: RunCell, progress: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Run all turns of a cell.

    Returns:
        The cell, its id, and "turns" as ``Trial.as_dict`` has them; "error" in their place where a turn failed.

    Raises:
        ConfigError: there can be no link here, or the link is none.
    """
    row = {"kind": "run", "id": cell.id, **asdict(cell)}
    command = [sys.executable, str(FOLDER / f"{cell.script}.py")]
    link = Link.read(cell.link)
    with Netlab(cell.workers, str(replace(link, delay=0.0)), f"{1e6 * link.delay:.0f}us") as lab:
        try:
            trial = try_script(
                lab,
                command,
                steps=cell.steps,
                turns=cell.turns,
                link=cell.link,
                modes=(PLAIN, WATCH, APPLY),
                passes=SCRIPTS[cell.script].passes,
                progress=progress,
            )
        except ConfigError as error:
            return {**row, "error": str(error)}
    return {**row, **_figures(trial)}


def _figures(trial: Trial) -> dict[str, Any]:
    def of(mode: str, what: str) -> list[Any]:
        return [found for turn in trial.turns if turn.mode == mode and (found := getattr(turn, what)) is not None]

    return {
        "seconds": {mode: of(mode, "seconds") for mode in (PLAIN, WATCH, APPLY)},
        "losses": {mode: of(mode, "loss") for mode in (PLAIN, WATCH, APPLY)},
        "proposed": of(WATCH, "proposed"),
        "switched": of(APPLY, "switched"),
        "checks": sum(of(APPLY, "checks")),
        "wrong": sum(of(APPLY, "wrong")),
    }


@dataclass(frozen=True)
class RunVerdict:
    """The judgement of one cell.

    Args:
        script: name of the script.
        link: its link.
        plain: median seconds of an uncompressed step.
        applied: median seconds of a compressed one.
        faster: factor by which compressed steps are faster, and the ends of the interval in which 95 % of such means
            lie; the ends are None for a single round.
        watched: the same of watched steps.
        changed: true where something was compressed in every round, before the steps that count.
        miss: distance of the predicted from the measured step, as a share of the measured one; None: nothing was
            compressed, or nothing predicted.
        same_losses: true where the losses of compressed turns lie within the spread of the plain ones, or below.
        wrong: means that were out of bounds.
    """

    script: str
    link: str
    plain: float
    applied: float
    faster: tuple[float, float | None, float | None]
    watched: tuple[float, float | None, float | None]
    changed: bool
    miss: float | None
    same_losses: bool
    wrong: int

    @property
    def missed(self) -> list[str]:
        """The goals that are missed, in words; a ratio misses its goal where its whole interval does."""
        found = []
        if _reaches(self.faster, SLOWER) is False:
            found.append("slower than plain")
        if _reaches(self.watched, WATCHING) is False:
            found.append("watching costs")
        if self.miss is not None and self.miss > CLOSE:
            found.append("prediction")
        if not self.same_losses:
            found.append("loss")
        if self.wrong:
            found.append("a mean out of bounds")
        return found


def verdict_of(row: Mapping[str, Any]) -> RunVerdict:
    """Judge a row of ``measure_run`` that has no error."""
    plain, watched, applied = (row["seconds"][mode] for mode in (PLAIN, WATCH, APPLY))
    # What was switched on later is in none of the steps that count, or in some of them.
    last = max(row["switched"], default=0) * SCRIPTS[row["script"]].passes
    changed = len(row["switched"]) == len(applied) and last <= row["steps"] - row["steps"] // 3
    proposed = median(row["proposed"]) if row["proposed"] else None
    measured = median(applied)
    return RunVerdict(
        row["script"],
        row["link"],
        median(plain),
        measured,
        _mean_ratio(plain, applied),
        _mean_ratio(plain, watched),
        changed,
        abs(proposed - measured) / measured if changed and proposed is not None else None,
        _alike(row["losses"][PLAIN], row["losses"][APPLY]),
        row["wrong"],
    )


def _mean_ratio(before: Sequence[float], after: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The geometric mean of ratios of the same rounds, with the 95 % interval of Student's t for its logarithm."""
    logs = [math.log(one / other) for one, other in zip(before, after, strict=True)]
    middle = fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), None, None
    deviation = math.sqrt(sum((each - middle) ** 2 for each in logs) / (len(logs) - 1))
    reach = quantile(len(logs) - 1) * deviation / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def _reaches(ratio: tuple[float, float | None, float | None], slower: float) -> bool | None:
    """Return whether steps may be slower by no more than a share; None: a single round does not tell."""
    return None if ratio[2] is None else ratio[2] >= 1 / (1 + slower)


def _alike(plain: Sequence[float | None], applied: Sequence[float | None]) -> bool:
    """Return whether the mean loss of compressed turns is at most half a per cent above the highest plain one.

    >>> _alike([1.0, 1.1], [1.1, 1.105]), _alike([1.0], [None]), _alike([None], [math.nan])
    (True, False, True)
    """
    plain, applied = ([math.nan if each is None else each for each in some] for some in (plain, applied))
    if not plain or not applied or math.isnan(fmean(plain)):
        return True
    return fmean(applied) <= max(plain) + 0.005 * abs(max(plain))


def in_words(verdicts: Sequence[RunVerdict]) -> Iterator[str]:
    """Sum the verdicts up, a line for each goal.

    Args:
        verdicts: those of all cells that ran.
    """
    for words, found in (
        ("not slower than plain by more than 2 %", [_reaches(each.faster, SLOWER) for each in verdicts]),
        ("watching not slower by more than 1 %", [_reaches(each.watched, WATCHING) for each in verdicts]),
        (
            "predicted within 10 %, of those that were changed",
            [each.miss <= CLOSE for each in verdicts if each.miss is not None],
        ),
        ("loss as without compression", [each.same_losses for each in verdicts]),
    ):
        known = [each for each in found if each is not None]
        left = len(found) - len(known)
        yield f"{words}: {sum(known)} of {len(known)}" + (f", {left} not known" if left else "")
