"""``gradwire check gpu``: are the GPU kernels right, does DDP run there, and what does a method cost?"""

from __future__ import annotations

from pathlib import Path

import click

from gradwire.cli.command_group import METHOD, Number
from gradwire.cli.output import emit, json_option
from gradwire_lab.experiments.gpu_check import MINUTES, GpuReport, check_gpu, lines, writer

__all__ = ["gpu_command"]


@click.command("gpu")
@click.option(
    "--minutes",
    default=MINUTES,
    show_default=True,
    type=Number(0, 1000, min_open=True),
    help="That it may take; what the time does not do for is named.",
)
@click.option("--interpreter", is_flag=True, help="Compare the kernels without a GPU, on small sizes.")
@click.option("--method", "methods", multiple=True, type=METHOD, help="May be repeated. Default: every one.")
@json_option
@click.pass_context
def gpu_command(
    ctx: click.Context, minutes: float, interpreter: bool, methods: tuple[str, ...], json_to: str | None
) -> None:
    """Compare the GPU kernels with their references, run DDP on the GPU, and time every method there.

    It needs this package, torch and a GPU, and no network; where click is missing, python -m
    gradwire_lab.experiments.gpu_check does the same. The file of --json is written as it goes on. Ends with exit code 1
    where something differs, with 2 where there is no GPU.
    """
    keep = writer(None if json_to in (None, "-") else Path(str(json_to)))
    told: set[str] = set()

    def note(report: GpuReport) -> None:
        keep(report)
        for part in report.parts:
            if part.seconds and part.name not in told:
                told.add(part.name)
                click.echo(f"{part.name}: {len(part.rows)} rows in {part.seconds:.0f} s", err=True)

    report = check_gpu(minutes=minutes, interpreter=interpreter, methods=methods, note=note)
    emit(report.as_dict(), json_to, lambda: list(lines(report)))
    if report.broken:
        ctx.exit(1)
