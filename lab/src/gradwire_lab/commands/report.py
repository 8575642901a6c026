"""``gradwire report``: what was measured, as a page, as files, as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gradwire.cli.output import emit, json_option, writable
from gradwire_lab import report
from gradwire_lab.commands._markers import write_tables
from gradwire_lab.report import Results, Section, Table

__all__ = ["command"]

_WHOLE = 24
"""Letters that a cell may have and still is not broken, however narrow the terminal."""

_STYLES = {"noise": "dim", "better": "green", "worse": "red", "failed": "red"}

_file = click.Path(path_type=Path, dir_okay=False, writable=True)


def _makeable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a folder that cannot be made before the work; the callback of an option.

    Its first parent that is there must take a new file.
    """
    if value is not None:
        there = next((each for each in (value, *value.absolute().parents) if os.path.exists(each)), value)
        writable(ctx, param, there / "a plot.png")
    return value


@click.command("report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=_file,
    metavar="FILE",
    callback=writable,
    help="Write the page to FILE; it needs no network.",
)
@click.option(
    "--static",
    "static_to",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    callback=_makeable,
    help="Write every plot to DIR as PNG and SVG; needs Chrome or Chromium.",
)
@click.option(
    "--markdown",
    "markdown_to",
    type=_file,
    metavar="FILE",
    callback=writable,
    help="Write the tables of quality and of links to FILE; in a page that has their markers, between these.",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Say how many runs of this suite are there; may be repeated.",
)
@click.option("--title", default="gradwire: what was measured", show_default=True, help="Of the page.")
@json_option
def command(
    files: tuple[Path, ...],
    output: Path | None,
    static_to: Path | None,
    markdown_to: Path | None,
    suites: tuple[Path, ...],
    title: str,
    json_to: str | None,
) -> None:
    """Show what FILES hold: lines of 'gradwire train' and 'sweep', of 'replay' and of 'bench codec --samples', or of
    any trainer: a file for each run, in each line step and loss, and perhaps seconds and bytes, both since its begin.

    Quality against throughput and data volume, quality over time, memory, links, latency and break-even bandwidths,
    with the noise floor of the uncompressed runs: a difference below it is shown as none. Failed runs are listed.
    """
    results = report.read(files, suites)
    found = report.sections(results)
    emit(_data(results, found), json_to, lambda: _tables(results, found))
    if output is not None:
        report.write(output, results, found, title)
    if markdown_to is not None:
        write_tables(markdown_to, report.markdown(results))
    if static_to is not None:
        report.images(static_to, found)


def _data(results: Results, found: Sequence[Section]) -> dict[str, Any]:
    tables = {section.name: [block.as_dict() for block in _tables_of(section)] for section in found}
    return {
        "headline": report.headline(results),
        "facts": dict(report.facts(results)),
        "warnings": report.warnings(results),
        "tables": {name: blocks for name, blocks in tables.items() if blocks},
    }


def _tables_of(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def _tables(results: Results, found: Sequence[Section]) -> list[RenderableType]:
    shown: list[RenderableType] = [Text(sentence, style="bold") for sentence in report.headline(results)]
    shown += [Text(f"{name}: {value}") for name, value in report.facts(results)]
    shown += [Text(f"! {warning}", style="yellow") for warning in report.warnings(results)]
    for section in found:
        for table in _tables_of(section):
            shown += [Text(""), Text(f"{section.title}, {table.choice}", style="bold"), _rich(table)]
            shown += [Text(note, style="dim") for note in table.notes]
    return shown


def _rich(table: Table) -> RichTable:
    """Make the table for the terminal, with the columns marked as brief."""
    kept = [at for at, head in enumerate(table.heads) if head in table.brief]
    made = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for at in kept:
        widest = max(len(text) for text in (*table.heads[at].split(), *(row[at].text for row in table.rows)))
        side: JustifyMethod = "right" if table.numeric(at) else "left"
        width = widest if widest <= _WHOLE else None
        made.add_column(table.heads[at], justify=side, overflow="fold", width=width)
    for row in table.rows:
        made.add_row(*(Text(row[at].text, style=_STYLES.get(row[at].tone, "")) for at in kept))
    return made
