"""``gradwire methods``: every compressor with everything it declares."""

from __future__ import annotations

from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from gradwire import registry
from gradwire.cli._output import emit, json_option

__all__ = ["command", "properties"]

_FLAGS = ("summable", "unbiased", "contraction", "random", "elementwise")


@click.command("methods")
@json_option
def command(json_to: str | None) -> None:
    """List every compressor with the properties it declares, at its default parameters."""
    rows = properties()
    emit(rows, json_to, lambda: _tables(rows))


def properties() -> list[dict[str, Any]]:
    """What each registered compressor declares; found in the folder, so a new method is here by being there."""
    return [registry.build("compressors", name).properties() for name in registry.names("compressors")]


def _tables(rows: list[dict[str, Any]]) -> list[RenderableType]:
    declared = Table("method", "bits/element", "feedback", "rounds", "cut at", "declares")
    sources = Table("method", "parameters", "source")
    for row in rows:
        cut = str(row["alignment"] or "never")
        bits = f"{row['bits_per_element']:g}"
        declared.add_row(row["name"], bits, row["feedback"], str(row["rounds"]), cut, _declared(row))
        sources.add_row(row["name"], _parameters(row["params"]), row["reference"])
    return [declared, sources]


def _declared(row: dict[str, Any]) -> str:
    flags = [flag for flag in _FLAGS if row[flag]]
    return ", ".join(flags if row["fixed_size"] else [*flags, "variable size"])


def _parameters(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items())
