"""``gradwire demo``: train on this machine with compressed gradients, and compare."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer
from gradwire.cli.output import counted, emit, json_option
from gradwire_lab.experiments.demo import DemoReport, compare
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.tasks import task_names

__all__ = ["command"]

_PHASES = ("step", "compute", "compress", "communicate", "decompress")

_NOTE = (
    "Times are milliseconds of worker 0 in a step. Compute is CPU time of the training thread; the other phases run "
    "beside it on a thread of their own, and communicate includes waiting for the other workers. The gradients crossed "
    "this machine's loopback, where a byte costs next to nothing: compression saves bytes everywhere, and time where "
    "the network is the bottleneck."
)


@click.command("demo")
@click.option(
    "--compressor",
    "names",
    multiple=True,
    type=METHOD,
    help=f"Compare this one too: {METHOD_FORMS}; may be repeated.",
)
@click.option("--workers", default=2, show_default=True, type=Integer(2, 64), help="Worker processes.")
@click.option("--epochs", type=Integer(1), help="Passes over the data. Default: as the task's recipe says.")
@click.option(
    "--task",
    default="classification",
    show_default=True,
    type=click.Choice(task_names()),
    help="What is trained, with the data that is embedded.",
)
@json_option
def command(names: tuple[str, ...], workers: int, epochs: int | None, task: str, json_to: str | None) -> None:
    """Train a small ResNet on scanned digits, or another task, with several local workers, dense and compressed.

    Ends with a table of quality, bytes and times, and fails if the workers' models differ in a single bit.
    """
    methods = [method_of(text) for text in dict.fromkeys(("none", "twobit", *names))]
    report = compare(methods, workers=workers, epochs=epochs, task=task)
    emit(dataclasses.asdict(report), json_to, lambda: [table(report), f"\n{_NOTE}\n", verdict(report)])
    report.check()


def table(report: DemoReport) -> RenderableType:
    """Make the table of the comparison, at most 80 columns wide."""
    parts = counted(report.workers, "worker"), counted(report.epochs, "epoch"), counted(report.steps, "step")
    title = f"{report.task}: {', '.join(parts)}"
    grid = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    grid.add_column("method", overflow="fold")
    for head in (report.measure.replace(" ", "\n"), "bytes\n/ step", "ratio", *_PHASES):
        grid.add_column(head, justify="right", no_wrap=True)
    for row in report.rows:
        grid.add_row(*cells(row))
    return grid


def cells(row: dict[str, Any]) -> list[str]:
    times = [f"{1e3 * row['seconds'][phase]:.2f}" for phase in _PHASES]
    return [row["method"], row["shown"], f"{row['bytes_per_step']:,.0f}", f"{row['ratio']:.1f}x", *times]


def verdict(report: DemoReport) -> RenderableType:
    if report.apart:
        return Text(f"The workers' parameters DIFFER after {', '.join(report.apart)}.", style="bold red")
    return Text(f"The parameters of the {report.workers} workers are bit-identical after every run.")
