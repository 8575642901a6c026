"""``gradwire doctor``: what runs here, and why."""

from __future__ import annotations

from typing import Any

import click
from rich.console import RenderableType
from rich.table import Column, Table

from gradwire.cli.commands import _facts
from gradwire.cli.output import emit, json_option

__all__ = ["command"]


@click.command("doctor")
@json_option
@click.pass_context
def command(ctx: click.Context, json_to: str | None) -> None:
    """Show which kernels, backends, threads and extras are in use here, and the reason for each.

    Ends with exit code 1 where a variable of the environment has a value that cannot work.
    """
    findings, wrong = _facts.findings(), _facts.wrong()
    emit(findings, json_to, lambda: [_table(findings), *(f"WRONG: {each}" for each in wrong)])
    if wrong:
        ctx.exit(1)


def _table(findings: dict[str, dict[str, dict[str, Any]]]) -> RenderableType:
    table = Table("", Column("item", no_wrap=True), "here", "because")
    for section, items in findings.items():
        for i, (item, fact) in enumerate(items.items()):
            table.add_row("" if i else section, item, _shown(fact["value"]), fact["reason"])
        table.add_section()
    return table


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
