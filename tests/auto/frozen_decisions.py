"""Decisions of ``auto`` in scenarios with a simulated clock, kept in ``frozen_decisions.json``.

    python -m tests.auto.frozen_decisions            write the file anew
    python -m tests.auto.frozen_decisions NAME ...   print these scenarios, and leave the file as it is

Real ranks exchange real messages, and a clock says how long they took, so the same code makes the same decisions each
time. A change of ``gradwire.auto`` that is to change no decision leaves the file as it is, byte for byte; one that is
to change some shows them in its diff.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from gradwire.testing.processes import run_ranks
from tests.auto import jobs, step_jobs, weights_jobs
from tests.heard import heard

FILE = Path(__file__).with_name("frozen_decisions.json")

DIGITS = 5
"""Significant digits of the numbers that are kept."""

COLUMNS = ("choice", "exposed", "error")
"""Figures of each bucket that are kept."""


@dataclass(frozen=True)
class Scenario:
    """A scenario: the job of each rank, and what it is given."""

    job: Callable[..., Any]
    given: tuple[Any, ...] = ()
    ranks: int = 2


SLOW, FAST = jobs.SLOW, jobs.FAST

SCENARIOS = {
    "slow link, exact": Scenario(jobs.slow_link, ("exact", "AdamW")),
    "slow link, safe": Scenario(jobs.slow_link, ("safe", "AdamW")),
    "slow link, small": Scenario(jobs.slow_link, ("small", "SGD")),
    "slow link, small under Adam": Scenario(jobs.slow_link, ("small", "AdamW")),
    "nothing to gain": Scenario(jobs.nothing_to_gain, ranks=3),
    "uncompressed by the policy at first": Scenario(jobs.warming_up),
    "resting, then a slow link": Scenario(jobs.resting),
    "gradients that do not settle": Scenario(jobs.unsettled, (136,)),
    "a straggler": Scenario(jobs.straggling, (10.0,)),
    "a straggler behind which all is hidden": Scenario(jobs.straggling, (200.0,)),
    "embeddings": Scenario(jobs.with_embeddings),
    "gradients that are not finite": Scenario(jobs.not_finite),
    "16 bits": Scenario(jobs.sixteen_bits, ranks=3),
    "slow, fast and slow again": Scenario(jobs.changing_link),
    "noise": Scenario(jobs.noisy, (0.5, 3, (SLOW, SLOW))),
    "much noise": Scenario(jobs.noisy, (0.8, 2, (SLOW, SLOW))),
    "a change in noise": Scenario(jobs.noisy, (0.5, 1, (SLOW, FAST, SLOW))),
    "messages that are faster than the model": Scenario(jobs.noisy, (0.0, 0, (SLOW, SLOW), 0.2)),
    "messages that are slower than the model": Scenario(jobs.noisy, (0.0, 0, (SLOW, SLOW), 4.0)),
    "slower when methods begin": Scenario(jobs.changed_at_once, (SLOW / 5,)),
    "fast when methods begin": Scenario(jobs.changed_at_once, (FAST,)),
    "methods that take longer": Scenario(jobs.slower_than_uncompressed),
    "decisions made again": Scenario(jobs.made_again),
    "a checkpoint": Scenario(jobs.resumed),
    "two hosts that share links": Scenario(jobs.on_hosts, (FAST, 2), ranks=4),
    "two hosts, a link for each rank": Scenario(jobs.on_hosts, (FAST, 1), ranks=4),
    "FSDP1": Scenario(jobs.sharded, ("1", SLOW / 4, 0.0, 0.0, 60)),
    "FSDP2": Scenario(jobs.sharded, ("2", SLOW / 4, 0.0, 0.0, 60)),
    "FSDP2, hidden": Scenario(jobs.sharded, ("2", SLOW, 0.04)),
    "FSDP2, weights that are waited for": Scenario(jobs.sharded, ("2", SLOW, 0.001, 0.04)),
    "FSDP2 on two hosts": Scenario(jobs.sharded_on_hosts, (2,), ranks=4),
    "FSDP2, weights on the same link": Scenario(weights_jobs.decided, (SLOW / 4, 30)),
    "exchanged steps, safe": Scenario(step_jobs.decided, ({}, (FAST, SLOW, FAST))),
    "exchanged steps, small": Scenario(step_jobs.decided, ({"budget": "small"}, (SLOW, FAST))),
}
"""The scenarios by name; most are those of the other tests of this folder."""


@dataclass
class StepLog:
    """The steps of all exchanges of a scenario, as ``auto`` saw them.

    Attributes:
        steps: phase and kind of each step.
        windows: figures after each measurement, with the number of the step.
        controllers: controllers of the exchanges.
    """

    steps: list[str] = field(default_factory=list)
    windows: list[dict[str, Any]] = field(default_factory=list)
    controllers: list[Any] = field(default_factory=list)

    def follow(self, controller: Any) -> None:
        """Note each step of an exchange."""
        begin, number = controller.begin, len(self.controllers)
        self.controllers.append(controller)

        def noted() -> None:
            begin()
            names = [name for name in ("idle", "timed", "glances", "probing") if getattr(controller, name)]
            doing = re.sub(r"\d+", "#", controller.status()[0][1].partition(": ")[2])
            self.steps.append(f"{number}: {' '.join([controller.phase, *names])}: {doing}")
            found = self._known(controller, number)
            if not self.windows or {**self.windows[-1], "at": 0} != {**found, "at": 0}:
                self.windows.append(found)

        controller.begin = noted

    def _known(self, controller: Any, number: int) -> dict[str, Any]:
        figures, report = controller.metrics(), controller.report()
        columns = {name: [each[name] for each in report["buckets"]] for name in COLUMNS if report["buckets"]}
        return {"exchange": number, "at": len(self.steps), **figures, **columns}

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for JSON; equal steps in a row are counted."""
        return {
            "steps": [f"{len(list(alike))} x {text}" for text, alike in groupby(self.steps)],
            "windows": self.windows,
            "decisions": [controller.report()["decisions"] for controller in self.controllers],
            "status": [controller.status() for controller in self.controllers],
        }


def followed(rank: int, job: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Run a scenario's job on a rank, and return its log with the messages that were shown."""
    log, said, slow = StepLog(), heard(logging.DEBUG), jobs.slow

    def slow_and_followed(exchange: Any, rate: float) -> jobs.LinkClock:
        link = slow(exchange, rate)
        log.follow(exchange.controller)
        return link

    jobs.slow = step_jobs.slow = slow_and_followed
    job(rank, *given)
    return log.as_dict() | {"said": list(said)}


def rounded(value: Any) -> Any:
    """The value with ``DIGITS`` significant digits of each number, as it is after JSON."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def decided(name: str) -> dict[str, Any]:
    """Run a scenario.

    Returns:
        Its arguments, and the log of the first rank: the others note the same, and say nothing.
    """
    scenario = SCENARIOS[name]
    first, *others = run_ranks(scenario.ranks, followed, scenario.job, *scenario.given)
    given = {"job": scenario.job.__name__, "given": list(scenario.given), "ranks": scenario.ranks}
    for each in others:
        assert all(each[key] == first[key] for key in first if key != "said"), f"ranks differ in {name!r}"
    found: dict[str, Any] = rounded(given | first)
    return found


def written(found: dict[str, dict[str, Any]]) -> str:
    """Scenarios as JSON, with a line for each entry of a list, so that a difference is seen where it is."""

    def entries(value: Any) -> str:
        if not isinstance(value, list) or not value:
            return json.dumps(value, allow_nan=False)
        return "[\n" + ",\n".join(f"   {json.dumps(each, allow_nan=False)}" for each in value) + "\n  ]"

    scenarios = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(key)}: {entries(value)}" for key, value in scenario.items())
        + "\n }"
        for name, scenario in found.items()
    ]
    return "{\n" + ",\n".join(scenarios) + "\n}\n"


def main(names: list[str]) -> None:
    text = written({name: decided(name) for name in names or SCENARIOS})
    if names:
        sys.stdout.write(text)
    else:
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
