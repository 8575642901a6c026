"""``gradwire check``: does what compression promises hold on this machine?"""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, CommandGroup, Integer
from gradwire.cli.output import json_option, show
from gradwire.memory.residual import DTYPES
from gradwire_lab.commands._check_advise import advise_command
from gradwire_lab.commands._check_auto import auto_command
from gradwire_lab.commands._check_cluster import cluster_command
from gradwire_lab.commands._check_gpu import gpu_command
from gradwire_lab.commands._check_meeting import meeting_command
from gradwire_lab.commands._check_nccl import nccl_command
from gradwire_lab.commands._check_regions import regions_command
from gradwire_lab.commands._check_run import run_command
from gradwire_lab.commands._check_soak import soak_command
from gradwire_lab.commands._check_store import store_command
from gradwire_lab.commands._markers import check_markers, markdown_option, write_tables
from gradwire_lab.commands._rows import stored
from gradwire_lab.experiments import convergence
from gradwire_lab.experiments.convergence import BASELINE, TOLERANCE, ConvergenceRow
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.recommended import labels

__all__ = ["command"]


@click.group("check", cls=CommandGroup)
def command() -> None:
    """Check on this machine what compression promises."""


command.add_command(advise_command)
command.add_command(auto_command)
command.add_command(cluster_command)
command.add_command(gpu_command)
command.add_command(meeting_command)
command.add_command(nccl_command)
command.add_command(regions_command)
command.add_command(run_command)
command.add_command(soak_command)
command.add_command(store_command)


@command.command("convergence")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"{METHOD_FORMS}; a name alone has its recommended settings. May be repeated. Default: every one.",
)
@click.option("--workers", multiple=True, type=Integer(2, 64), help="May be repeated. Default: 2 and 4.")
@click.option("--seeds", default=3, show_default=True, type=Integer(1), help="Runs of each method.")
@click.option(
    "--residual-dtype",
    "residual_dtypes",
    multiple=True,
    type=click.Choice(list(DTYPES)),
    help="Of residuals; may be repeated, to compare. Methods that keep none train once. Default: float32.",
)
@click.option("--epochs", default=10, show_default=True, type=Integer(1), help="Passes over the data.")
@markdown_option
@json_option
@click.pass_context
def convergence_command(
    ctx: click.Context,
    methods: tuple[str, ...],
    workers: tuple[int, ...],
    seeds: int,
    residual_dtypes: tuple[str, ...],
    epochs: int,
    markdown_to: Path | None,
    json_to: str | None,
) -> None:
    """Train the digits with every method, on real workers, and compare with uncompressed training.

    A method must end within 2 points of the uncompressed accuracy, mean of the seeds; one that is known to miss it is
    shown with the reason. Ends with exit code 1 where another misses it, or workers end with different parameters.
    """
    check_markers(markdown_to, "convergence")
    named = [method_of(text) for text in methods or labels()]
    chosen = [each for method in named for each in convergence.kept_in(method, residual_dtypes or ("float32",))]
    rows: list[ConvergenceRow] = []
    with stored(json_to) as store:
        for row in convergence.rows(chosen, workers or (2, 4), seeds, epochs):
            rows.append(row)
            # A run takes minutes.
            click.echo(f"{row.method}, {row.workers} workers: {row.accuracy:.1%}, {row.verdict}", err=True)
            if row.comparable:
                store(row.as_dict())
        if json_to != "-":
            show(_table(rows))
        if markdown_to is not None:
            write_tables(markdown_to, {"convergence": convergence.markdown(rows)})
        # An error to the file of rows, which leaves what was there before where there is nothing to store.
        if any(row.failed for row in rows):
            ctx.exit(1)


def _table(rows: list[ConvergenceRow]) -> RenderableType:
    seeds = len(rows[0].accuracies)
    title = f"digits, {rows[0].epochs} epochs, mean of {seeds} seeds; goal: {TOLERANCE:g} points below {BASELINE!r}"
    table = Table("method", title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("workers", "accuracy", "points", "bytes/step", "ratio", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for row in rows:
        figures = f"{row.accuracy:.1%}", f"{row.points:+.1f}", f"{row.bytes_per_step:,.0f}", f"{row.ratio:.1f}x"
        table.add_row(row.method, str(row.workers), *figures, f"{row.state_bytes:,}", row.verdict)
    return table
