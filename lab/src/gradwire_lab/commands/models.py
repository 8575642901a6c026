"""``gradwire models``: the networks of the benchmarks, and the bytes that their gradients take."""

from __future__ import annotations

from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.output import emit, json_option
from gradwire_lab.experiments import models

__all__ = ["command"]

Row = dict[str, Any]


@click.command("models")
@json_option
def command(json_to: str | None) -> None:
    """List the models of the benchmarks with their parameters and tensors, full size and as a small variant."""
    rows = [_row(name) for name in models.names()]
    emit(rows, json_to, lambda: [_table(rows)])


def _row(name: str) -> Row:
    full, small = models.facts(name), models.facts(name, small=True)
    return _size(full) | {"data": full.data, "title": full.title, "small": _size(small)}


def _size(found: models.Facts) -> Row:
    return {
        "name": found.name,
        "parameters": found.parameters,
        "tensors": found.tensors,
        "largest": found.largest,
    }


def _table(rows: list[Row]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True)
    for head in ("parameters", "tensors", "largest", "small", "tensors"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for row in rows:
        small = row["small"]
        sizes = row["parameters"], row["tensors"], row["largest"], small["parameters"], small["tensors"]
        table.add_row(row["name"], *(f"{size:,}" for size in sizes), row["data"])
    return table
