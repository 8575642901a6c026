"""What a subcommand found, as JSON for programs or as tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console, RenderableType

__all__ = ["emit", "json_option"]


def _writable(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse a hopeless destination before the work, not after it."""
    if value in (None, "-"):
        return value
    path = Path(str(value))
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}", ctx, param) from None
    if not existed:
        path.unlink()
    return value


json_option = click.option(
    "--json", "json_to", metavar="FILE", callback=_writable,
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
