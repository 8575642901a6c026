"""``gradwire check run``: are scripts that know nothing of gradwire faster by it, and never slower?"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire._files import for_json
from gradwire.cli.command_group import Integer
from gradwire.cli.output import show
from gradwire.errors import Verbatim, require
from gradwire_lab.commands._options import appendable
from gradwire_lab.experiments.auto_verdicts import read
from gradwire_lab.experiments.records import append_line
from gradwire_lab.experiments.run_check import (
    LINKS,
    SCRIPTS,
    RunCell,
    RunVerdict,
    in_words,
    measure_run,
    needed,
    verdict_of,
)
from gradwire_lab.experiments.script_trial import FEWEST
from gradwire_lab.netlab.link import Link
from gradwire_lab.netlab.names import MOST_WORKERS

__all__ = ["run_command"]


@click.command("run")
@click.option(
    "--script",
    "scripts",
    multiple=True,
    type=click.Choice(list(SCRIPTS)),
    help="May be repeated. Default: every one whose packages are installed.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="RATE",
    help=f"As 100mbit, 50mbit+20ms, or none: no limit. May be repeated. Default: {', '.join(LINKS)}.",
)
@click.option("--workers", default=2, show_default=True, type=Integer(2, MOST_WORKERS), help="With a link each.")
@click.option("--steps", default=150, show_default=True, type=Integer(FEWEST), help="Backward passes of a turn.")
@click.option(
    "--turns",
    default=3,
    show_default=True,
    type=Integer(1),
    help="Rounds of a cell; one alone does not tell what is slower.",
)
@click.option(
    "--json",
    "json_to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Append a JSON line for each cell to FILE; a cell that is there is not measured again.",
)
@click.pass_context
def run_command(
    ctx: click.Context,
    scripts: tuple[str, ...],
    links: tuple[str, ...],
    workers: int,
    steps: int,
    turns: int,
    json_to: Path | None,
) -> None:
    """Train a dozen scripts that know nothing of gradwire, over a netlab; needs root.

    Each is run plain, watched and compressed, as by `gradwire run` and `gradwire run --apply`, in turns on each link. A
    compressed step may take 2 % longer than a plain one, a watched step 1 %, and a prediction may be wrong by a tenth;
    the loss must end where it ends without compression. Ends with exit code 1 where a goal is missed or a cell failed.
    The whole matrix takes an hour or two: go on with the same --json later.
    """
    if json_to is not None:
        appendable(json_to)
    for link in links:
        Link.read(link)
    there = {} if json_to is None else {row["id"]: row for row in read(json_to, "run")}
    able = [script for script in scripts or SCRIPTS if not _left_out(script)]
    require(bool(able), "--script", "one whose packages are installed", Verbatim(", ".join(scripts)))
    cells = [RunCell(script, link, workers, steps, turns) for script in able for link in links or LINKS]
    rows = []
    for number, cell in enumerate(cells, 1):
        row = there.get(cell.id)
        if row is None:
            row = measure_run(cell, partial(_say, f"{number} of {len(cells)}: {cell.script}, {cell.link}"))
            if json_to is not None:
                append_line(json_to, json.dumps(for_json(row), allow_nan=False))
        rows.append(row)
    found = [verdict_of(row) for row in rows if "error" not in row]
    failed = [f"{row['script']}, {row['link']}: {row['error']}" for row in rows if "error" in row]
    show(_table(found), *in_words(found), *failed)
    if failed or any(each.missed for each in found):
        ctx.exit(1)


def _say(begin: str, line: str) -> None:
    click.echo(f"{begin}: {line}", err=True)


def _left_out(script: str) -> bool:
    """Say that a script is left out, where its packages are missing."""
    missing = needed(script)
    if missing:
        click.echo(f"{script} is left out: it needs {' and '.join(missing)}", err=True)
    return bool(missing)


def _table(found: list[RunVerdict]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("script", "link"):
        table.add_column(name, no_wrap=True)
    for name in ("plain, ms", "applied, ms", "times as fast", "watched", "prediction off by"):
        table.add_column(name, justify="right")
    table.add_column("missed", overflow="fold")
    for each in found:
        times = (f"{1e3 * seconds:,.1f}" for seconds in (each.plain, each.applied))
        miss = "" if each.miss is None else f"{100 * each.miss:.0f} %"
        missed = ", ".join(each.missed) or ("" if each.changed else "nothing compressed")
        table.add_row(each.script, each.link, *times, _ratio(each.faster), _ratio(each.watched), miss, missed)
    return table


def _ratio(ratio: tuple[Any, Any, Any]) -> str:
    middle, low, high = ratio
    return f"{middle:.2f}" if low is None else f"{middle:.2f} ({low:.2f} to {high:.2f})"
