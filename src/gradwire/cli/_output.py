"""What a subcommand found, as JSON for programs or as tables for people."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, RenderableType

from gradwire.bench.records import check
from gradwire.errors import ConfigError

__all__ = ["appendable", "emit", "json_option", "writable"]

Named = TypeVar("Named", bound=str | Path | None)


def writable(ctx: click.Context, param: click.Parameter, value: Named) -> Named:
    """Refuse a hopeless destination before the work, not after it; the callback of an option."""
    if value is not None and value != "-":
        said = _refused(Path(value))
        if said:
            raise click.BadParameter(said, ctx, param)
    return value


def appendable(path: Path) -> None:
    """Refuse a file to which no line of results can be added, before the work.

    Raises:
        ConfigError: it cannot be written, or ends with something else.
    """
    said = _refused(path)
    if said:
        raise ConfigError(said)
    check(path)


def _refused(path: Path) -> str:
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
    "--json", "json_to", metavar="FILE", callback=writable,
    help="Write the result as JSON to FILE; '-' writes it to standard output, and nothing else.",
)  # fmt: skip


def emit(data: Any, json_to: str | None, tables: Callable[[], list[RenderableType]]) -> None:
    """Write ``data`` where ``--json`` says, and the tables to standard output unless JSON went there."""
    text = json.dumps(data, indent=2) + "\n"
    if json_to == "-":
        click.echo(text, nl=False)
        return
    if json_to is not None:
        Path(json_to).write_text(text, encoding="utf-8")
    # Without markup: a name such as gradwire[cli] is text, not a style.
    console = Console(markup=False)
    for table in tables():
        console.print(table)
