"""Output of a subcommand: JSON for programs, or tables for people."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType
from rich.table import Table

from gradwire._files import for_json, replace_text

__all__ = ["counted", "emit", "json_option", "refused", "show", "writable"]

_WIDEST = 10_000
"""Columns of what is no terminal."""

_NUMBER = re.compile(r"[-+~]?\d[\d,.]*\s?\S*")

Named = TypeVar("Named", bound=str | Path | None)


def writable(ctx: click.Context, param: click.Parameter, value: Named) -> Named:
    """Refuse a destination that cannot be written, before the work starts; the callback of an option."""
    if value is not None and value != "-":
        said = refused(Path(value))
        if said:
            raise click.BadParameter(said, ctx, param)
    return value


def refused(path: Path) -> str:
    """Say why a file cannot be written; an empty text where it can."""
    try:
        if path.exists():
            path.open("a").close()
        else:
            # Another process may make the file meanwhile, and what it wrote must not be taken away again.
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


json_option = click.option(
    "--json",
    "json_to",
    metavar="FILE",
    callback=writable,
    help="Write the result as JSON to FILE; '-' writes it to standard output, and nothing else.",
)


def emit(data: Any, json_to: str | None, tables: Callable[[], list[RenderableType]]) -> None:
    """Write ``data`` where ``--json`` says, and before that the tables to standard output unless JSON goes there."""
    text = json.dumps(for_json(data), indent=2, allow_nan=False) + "\n"
    if json_to == "-":
        click.echo(text, nl=False)
        return
    show(*tables())
    if json_to is not None:
        replace_text(json_to, text)


def show(*found: RenderableType) -> None:
    """Print tables and texts to standard output; no text of a table is cut, however narrow the terminal.

    Into a pipe or a file each line is as long as it is. In a terminal a table that does not fit is wrapped by it.
    """
    # Without markup: a name such as gradwire[cli] is text, not a style.
    console = Console(markup=False)
    width = console.width if console.is_terminal else _WIDEST
    for each in found:
        needed = width
        if isinstance(each, Table):
            _whole(each)
            needed = max(width, console.measure(each, options=console.options.update(max_width=_WIDEST)).minimum)
        Console(markup=False, width=needed).print(each)


def _whole(table: Table) -> None:
    """Keep numbers on one line and let words that are too long for a column go on in the next line."""
    for column in table.columns:
        cells = [str(cell) for cell in column.cells]
        column.no_wrap = column.no_wrap or any(_NUMBER.fullmatch(cell) for cell in cells)
        column.overflow = "fold"


def counted(number: int, thing: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch"), counted(1_500, "step")
    ('1 epoch', '2 epochs', '1,500 steps')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
