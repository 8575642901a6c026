"""``gradwire check auto``: is "auto" never slower than plain DDP, and as fast as the best fixed method?"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer, Number
from gradwire.cli.output import counted, show, writable
from gradwire_lab import report
from gradwire_lab.commands._options import appendable, budget_option, steps_option
from gradwire_lab.experiments.auto_check import CHANGED, METHODS, ROUNDS, MatrixCell, measure, read_links
from gradwire_lab.experiments.auto_verdicts import BEHIND, LEAST_SHARE, Verdict, read, verdicts
from gradwire_lab.experiments.records import append_line
from gradwire_lab.experiments.replay import DECIDING, GRADIENTS
from gradwire_lab.report import Results

__all__ = ["auto_command"]

MODELS = ("vgg16_cifar", "lstm", "resnet50", "densenet40_k12", "gpt2")
LINKS = ("none", "10gbit", "1gbit", "100mbit", "50mbit+20ms", "1gbit,50mbit,1gbit")
WORKERS, COMPUTE = (2, 4), (0.0, 0.1)


@click.command("auto")
@click.option("--model", "models", multiple=True, help=f"May be repeated. Default: {', '.join(MODELS)}.")
@click.option("--small", is_flag=True, help="The small variants of the models.")
@click.option("--workers", multiple=True, type=Integer(2, 64), help="May be repeated. Default: 2 and 4.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="RATE",
    help="As 100mbit, 50mbit+20ms or none: the loopback; or several separated by commas, which follow one another "
    f"while the workers run. May be repeated. Default: {'; '.join(LINKS)}.",
)
@click.option(
    "--compute",
    multiple=True,
    type=Number(0),
    metavar="SECONDS",
    help="Of a pretended backward pass; may be repeated. Default: 0 and 0.1.",
)
@click.option("--repeats", default=3, show_default=True, type=Integer(1), help="Of each cell.")
@steps_option(
    DECIDING,
    ROUNDS,
    f"For 'auto' to decide in, at least {CHANGED} where the link changes; and as many that count, of each method.",
)
@budget_option(60.0, f"Count fewer steps of a method, but at least {ROUNDS}, where they would take longer.")
@click.option("--gradients", default="trained", show_default=True, type=click.Choice(GRADIENTS), help="As in replay.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"A fixed one, {METHOD_FORMS}; may be repeated. Default: {'; '.join(METHODS)}.",
)
@click.option("--auto", default="auto", show_default=True, metavar="METHOD", help="As auto:budget=small.")
@click.option(
    "--json",
    "json_to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Append a JSON line for each cell to FILE; a cell that is there is not measured again.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    callback=writable,
    help="Draw the cells in a page, FILE; it needs no network.",
)
@click.pass_context
def auto_command(ctx: click.Context, /, json_to: Path | None, output: Path | None, **given: Any) -> None:
    """Compare steps of "auto" with plain DDP and with fixed methods, over a netlab; needs root.

    All contestants of a cell take turns in one group of workers. Once "auto" has decided, its step may take 2 % longer
    than plain DDP's, and the fastest fixed method that keeps its budget must not be faster by more than a tenth; the
    medians of the repeats count. Ends with exit code 1 where a goal is missed or a cell failed. The whole matrix takes
    hours: choose a part of it, and go on with the same --json later.
    """
    if json_to is not None:
        appendable(json_to)
    wanted = _cells(given)
    there = {} if json_to is None else {row["id"]: row for row in read(json_to)}
    rows = []
    for number, cell in enumerate(wanted, 1):
        row = there.get(cell.id)
        if row is None:
            row = measure(cell)
            if json_to is not None:
                append_line(json_to, json.dumps(row))
            click.echo(f"{number} of {len(wanted)}: {_line(row)}", err=True)
        # A row from before the budget was written has it in its id.
        rows.append({**row, "budget": float(cell.budget)})
    found = verdicts(rows)
    show(_table(found), *_missed(found, rows))
    if output is not None:
        results = Results(cells=[row for row in rows if "error" not in row])
        report.write(output, results, report.sections(results), "gradwire: what auto decides")
    if not all(each.holds for each in found) or any("error" in row for row in rows):
        ctx.exit(1)


def _cells(given: dict[str, Any]) -> list[MatrixCell]:
    """Yield the cells to run: the first repeat of every cell comes before the second repeat of any."""
    chosen = itertools.product(
        range(given["repeats"]),
        given["models"] or MODELS,
        given["workers"] or WORKERS,
        [read_links(text) for text in given["links"] or LINKS],
        given["compute"] or COMPUTE,
    )
    same = {name: given[name] for name in ("small", "steps", "budget", "gradients", "auto")}
    methods = given["methods"] or METHODS
    return [
        MatrixCell(model, workers, links, compute, repeat, methods=methods, **same)
        for repeat, model, workers, links, compute in chosen
    ]


def _line(row: dict[str, Any]) -> str:
    begin = f"{row['model']}, {row['workers']} workers, {row['link']}, {1e3 * row['compute']:g} ms computed"
    if "error" in row:
        return f"{begin}: {row['error']}"
    said = (f"{each.behind:.2f} of plain DDP's step" + _share_of_best(each) for each in verdicts([row]))
    return f"{begin}: {'; '.join(said)}"


def _share_of_best(found: Verdict) -> str:
    return "" if found.share is None else f", {found.share:.2f} of the speed of {found.best}"


def _table(found: Sequence[Verdict]) -> RenderableType:
    good = sum(each.holds for each in found)
    title = f"{good} of {len(found)} hold; a step in ms; goals: {BEHIND:g} or less, {LEAST_SHARE:g} or more"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold", min_width=8)
    table.add_column("link", overflow="fold", min_width=8)
    for name in ("workers", "computed", "DDP", "auto", "auto / DDP", "best / auto"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best", overflow="fold")
    table.add_column("verdict")
    for each in found:
        part = each.part if each.part == each.link else f"{each.part}, part {each.number + 1}"
        times = (f"{1e3 * seconds:,.1f}" for seconds in (each.plain, each.auto))
        share = "-" if each.share is None else f"{each.share:.2f}"
        told = (str(each.workers), f"{1e3 * each.compute:g}", *times, f"{each.behind:.2f}", share)
        table.add_row(each.model, part, *told, each.best or "-", "holds" if each.holds else "missed")
    return table


def _missed(found: Sequence[Verdict], rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Lines below the table: how many cells failed, and how many rows have too few repeats."""
    failed = sum("error" in row for row in rows)
    few = sum(each.repeats < 3 for each in found)
    told: list[RenderableType] = [f"{counted(failed, 'cell')} failed."] if failed else []
    return told + ([f"{counted(few, 'row')} of fewer than 3 repeats: one disturbance decides there."] if few else [])
