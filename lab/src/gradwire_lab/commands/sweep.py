"""``gradwire sweep``: the runs of a suite, as many as there is time for."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from gradwire.cli.command_group import Integer
from gradwire.cli.output import counted
from gradwire.errors import ConfigError
from gradwire_lab.commands._options import PATIENCE, appendable
from gradwire_lab.commands._signals import interrupt
from gradwire_lab.experiments.records import read
from gradwire_lab.experiments.suite import load
from gradwire_lab.experiments.sweep import Order, Standing, duration, standing, to_the_end

__all__ = ["command"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Read a duration such as 90, 90s, 30m, 2.5h or 1d, and return seconds.

    >>> parse_duration("90"), parse_duration("2.5h")
    (90.0, 9000.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if seconds <= 0:
        raise ConfigError(f"budget must be a time above 0, as 90s, 30m or 2.5h, got {text!r}")
    return seconds


@click.command("sweep")
@click.argument("suite", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    default="results.jsonl",
    show_default=True,
    help="A line for each run that has ended; what is there is not run again.",
)
@click.option("--budget", metavar="TIME", help="As 30m or 2h: no run goes on for longer.")
@click.option("--retry", is_flag=True, help="Make runs that failed again.")
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=Integer(1),
    metavar="N",
    help="Groups at the same time: for quality alone; their times mean nothing, and the records say so.",
)
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=PATIENCE,
    metavar="SECONDS",
    help="That workers wait for each other.",
)
@click.option("--dry-run", is_flag=True, help="Say what is left and how long it will take, and run nothing.")
@click.pass_context
def command(
    ctx: click.Context,
    suite: Path,
    results: Path,
    budget: str | None,
    retry: bool,
    jobs: int,
    timeout: float,
    dry_run: bool,
) -> None:
    """Make the runs of SUITE, methods x tasks x workers x links x seeds, and write a record of each.

    It may be killed at any moment and started again: nothing that has ended is run twice. A run that fails is
    recorded, too, and the others go on; then the exit code is 1.
    """
    deadline = None if budget is None else time.time() + parse_duration(budget)
    appendable(results)

    def order() -> Order:
        """Put the runs that are known so far in order; the runs at the best learning rate are known only later."""
        made = list(read(results)) if results.exists() else []
        return Order(load(suite, made), results, deadline, retry, timeout, jobs)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        after = standing(order()) if dry_run else to_the_end(order)
    except KeyboardInterrupt:
        after = standing(order())
        kept = f"{counted(after.ok + len(after.failed), 'run')} that ended are in {results}"
        click.echo(f"stopped; {kept}; {left_over(after, jobs)}; go on with the same command", err=True)
        ctx.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    click.echo("\n".join(said(after, jobs)))
    if after.failed and not dry_run:
        ctx.exit(1)


def said(after: Standing, jobs: int) -> Iterator[str]:
    """Summarise in words how many runs ended well, failed or are left."""
    yield f"{counted(after.ok, 'run')} ended well, {len(after.failed)} failed; {left_over(after, jobs)}"
    for record in after.failed:
        known = record.settings
        where = f"{counted(known.workers, 'worker')}, seed {known.seed}"
        yield f"failed: {known.task} {known.method}, {where}: {record.error}"


def left_over(after: Standing, jobs: int) -> str:
    """Describe the runs that are not made yet: how many, of which tasks, and how long they will take."""
    if not after.left:
        return "nothing is left"
    tasks = Counter(job.settings.task for job in after.left)
    parts = ", ".join(f"{count} of {task}" for task, count in tasks.items())
    known = "" if after.seconds is None else f", about {duration(after.seconds / jobs)}"
    return f"left are {len(after.left)}: {parts}{known}"
