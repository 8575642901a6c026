"""``gradwire check regions``: what do rare, small and late exchanges cost in loss?"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import Integer
from gradwire.cli.output import counted, show, writable
from gradwire.errors import ConfigError
from gradwire_lab import report
from gradwire_lab.commands._markers import check_markers, markdown_option, write_tables
from gradwire_lab.commands._options import PATIENCE, appendable
from gradwire_lab.commands._signals import interrupt
from gradwire_lab.experiments.records import Record, read
from gradwire_lab.experiments.regions import DENSE, METHODS, RegionsPlan, RegionsRow, markdown, regions_rows
from gradwire_lab.experiments.sweep import Order, standing, to_the_end

__all__ = ["regions_command"]


@click.command("regions")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(METHODS)),
    metavar="NAME",
    help=f"May be repeated; {DENSE} is always among them. Default: {', '.join(METHODS)}.",
)
@click.option("--steps", default=2000, show_default=True, type=Integer(1), help="Of a run.")
@click.option("--workers", default=4, show_default=True, type=Integer(1), help="Processes on this machine.")
@click.option("--seeds", default="0,1,2", show_default=True, metavar="N,N", help="Rates are chosen by the first.")
@click.option("--refit", is_flag=True, help="Outer rates, momenta, periods and dense begins of DiLoCo instead.")
@click.option("--minutes", type=PATIENCE, metavar="MINUTES", help="No run goes on for longer. Default: to the end.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    default="regions.jsonl",
    show_default=True,
    help="A line for each run that has ended; what is there is not run again.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=writable,
    help="Write a page with pictures to FILE: loss over the bits that were sent.",
)
@markdown_option
@click.option("--dry-run", is_flag=True, help="Run nothing: what is left, and the table of what is there.")
@click.pass_context
def regions_command(
    ctx: click.Context,
    only: tuple[str, ...],
    steps: int,
    workers: int,
    seeds: str,
    refit: bool,
    minutes: float | None,
    results: Path,
    output: Path | None,
    markdown_to: Path | None,
    dry_run: bool,
) -> None:
    """Train the GPT of 4.8 million parameters by methods for links between regions, on real workers.

    Every method has the best of three inner rates, tried on runs a third as long. The table has the test loss, how far
    it is above synchronous data parallel, and the bits that a worker sent by parameter and step. It may be killed at
    any moment and started again. Ends with exit code 1 where a run failed.
    """
    plan = RegionsPlan(steps, workers, parse_seeds(seeds), only or None, refit)
    appendable(results)
    table = "refit" if refit else "regions"
    check_markers(markdown_to, table)
    deadline = None if minutes is None else time.time() + 60 * minutes

    def there() -> list[Record]:
        return list(read(results)) if results.exists() else []

    def order() -> Order:
        return Order(plan.jobs(there()), results, deadline)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        after = standing(order()) if dry_run else to_the_end(order)
    except KeyboardInterrupt:
        click.echo(f"stopped; what has ended is in {results}: go on with the same command", err=True)
        ctx.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    rows = regions_rows(plan, there())
    failed = [f"failed: {each.settings.method}, seed {each.settings.seed}: {each.error}" for each in after.failed]
    show(_table(rows), *failed, f"{counted(len(after.left), 'run')} left" if after.left else "nothing is left")
    if markdown_to is not None:
        write_tables(markdown_to, {table: markdown(plan, rows)})
    if output is not None:
        found = report.read([results])
        report.write(output, found, report.sections(found), "gradwire: training between regions")
    if failed and not dry_run:
        ctx.exit(1)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds.

    >>> parse_seeds("0,1, 2")
    (0, 1, 2)

    Raises:
        ConfigError: the text has another form.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise ConfigError(f"--seeds must be integers as 0,1,2, got {text!r}")
    return tuple(map(int, parts))


def _table(rows: Sequence[RegionsRow]) -> RenderableType:
    table = Table("method", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("inner rate", "seeds", "loss", "above dense", "bits", "s a step"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row.method, *row.texts, f"{row.seconds:.2f}")
    return table
