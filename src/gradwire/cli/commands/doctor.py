"""``gradwire doctor``: what runs here, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from gradwire.cli.commands import _facts
from gradwire.cli.output import emit, json_option

__all__ = ["command"]

WIDTH = 80
"""Columns, which every terminal has."""


@click.command("doctor")
@json_option
@click.pass_context
def command(ctx: click.Context, json_to: str | None) -> None:
    """Show which kernels, backends, threads and extras are in use here, and the reason for each.

    Of the extras those that are installed; --json has all. Ends with exit code 1 where a variable of the environment
    has a value that cannot work.
    """
    findings, wrong = _facts.findings(), _facts.wrong()
    emit(findings, json_to, lambda: [*_lines(findings), *(f"WRONG: {each}" for each in wrong)])
    if wrong:
        ctx.exit(1)


def _lines(findings: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Yield a line for each section, and below it the items with their reasons, wrapped."""
    for section, items in findings.items():
        yield section
        shown, left = items, list[str]()
        if section == "extras":
            shown = {item: fact for item, fact in items.items() if fact["value"]}
            left = [item for item in items if item not in shown]
        for item, fact in shown.items():
            head = f"  {item:<15} {_shown(fact['value'])}"
            text = textwrap.wrap(f"{head}: {fact['reason']}", WIDTH, subsequent_indent=" " * 20, break_on_hyphens=False)
            yield "\n".join(text)
        if left:
            others = f"  not installed: {', '.join(left)}; docs/install.md says what each is for"
            yield "\n".join(textwrap.wrap(others, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
