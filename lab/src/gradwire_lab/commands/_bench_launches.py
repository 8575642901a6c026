"""``gradwire bench launches``: what a step of each method would launch on a GPU, counted without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire import registry
from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer
from gradwire.cli.output import emit, json_option
from gradwire_lab.bench.launches import launch_rows
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.shapes import network_shapes

__all__ = ["launches_command"]

MATRIX = (4096, 4096)
"""The only parameter where no model is named."""

Row = dict[str, Any]


@click.command("launches")
@click.option("--method", "methods", multiple=True, type=METHOD, help=f"{METHOD_FORMS}; may be repeated. Default: all.")
@click.option(
    "--model",
    metavar="MODEL",
    help="The parameters of one bucket: a name of `gradwire models`, or shapes as 100x10000,25000000. Default: one "
    "matrix of 4096 x 4096.",
)
@click.option("--ranks", default=1, show_default=True, type=Integer(1, 64), help="The collectives do not count.")
@json_option
@click.pass_context
def launches_command(
    ctx: click.Context, methods: tuple[str, ...], model: str | None, ranks: int, json_to: str | None
) -> None:
    """Count what a step of each method would launch on a GPU, without one; it needs Triton.

    Kernels are recorded where they would be launched, and an operation of torch counts once, though some take several
    launches. Methods that read a value back are named with the reason. Ends with exit code 1 where a method fails in
    another way.
    """
    chosen = [parse_method(text) for text in methods]
    chosen = chosen or [registry.build("compressors", name) for name in registry.usable("compressors")]
    rows = list(launch_rows(chosen, network_shapes(model) if model else [MATRIX], ranks))
    emit(rows, json_to, lambda: list(_tables(rows)))
    if any("error" in row and not row["error"].startswith("WouldWaitError") for row in rows):
        ctx.exit(1)


def _tables(rows: list[Row]) -> Iterator[RenderableType]:
    table = Table("method", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for head in ("launches", "kernels", "of torch"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("most of them")
    for row in rows:
        if "error" not in row:
            own, torchs = (sum(row[name].values()) for name in ("kernels", "torch"))
            table.add_row(row["method"], str(row["launches"]), str(own), str(torchs), _most(row["kernels"]))
    yield table
    for row in rows:
        if "error" in row:
            yield f"{row['method']}: {row['error']}"


def _most(kernels: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in list(kernels.items())[:4])
