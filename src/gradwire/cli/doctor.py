"""``gradwire doctor``: what runs here, and why."""

from __future__ import annotations

from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli import _facts
from gradwire.cli._output import emit, json_option

__all__ = ["command"]


@click.command("doctor")
@json_option
def command(json_to: str | None) -> None:
    """Show which kernels, backends, threads and extras are in use here, and the reason for each."""
    findings = _facts.findings()
    emit(findings, json_to, lambda: [_table(findings)])


def _table(findings: dict[str, dict[str, dict[str, Any]]]) -> RenderableType:
    table = Table("", "item", "here", "because")
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
