"""``gradwire check nccl``: does it go over NCCL with several ranks, is it right there, and is it fast over a link?"""

from __future__ import annotations

from pathlib import Path

import click

from gradwire.cli.command_group import Number
from gradwire.cli.output import writable
from gradwire_lab.nccl.check import MINUTES, RANKS, REHEARSED_MINUTES, NcclRefusedError, check_nccl, lines, read_ranks

__all__ = ["nccl_command"]


@click.command("nccl")
@click.option("--ranks", default=",".join(map(str, RANKS)), show_default=True, metavar="N,N", help="2, 4 or both.")
@click.option(
    "--minutes",
    type=Number(0, 1000, min_open=True),
    help="That it may take; what the time does not do for is named. "
    f"Default: {MINUTES:g}; {REHEARSED_MINUTES:g} to rehearse.",
)
@click.option(
    "--json",
    "json_to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    callback=writable,
    help="A line of JSON for each row, as soon as it is known; a second call goes on with what is missing.",
)
@click.option("--rehearse", is_flag=True, help="Run all of it over Gloo on the CPU, with small models.")
@click.pass_context
def nccl_command(ctx: click.Context, ranks: str, minutes: float | None, json_to: Path | None, rehearse: bool) -> None:
    """Train over NCCL with several ranks on one GPU, compare with Gloo on the CPU, and time it over slow links.

    It needs this package, torch and a GPU; links need root and iproute2. Where click is missing, python -m
    gradwire_lab.nccl.check does the same. Ends with exit code 1 where something differs, with 2 where there is no GPU,
    and with 3 where NCCL refuses, or something was left out.
    """
    try:
        report = check_nccl(
            json_to,
            ranks=read_ranks(ranks),
            minutes=minutes,
            rehearse=rehearse,
            note=lambda text: click.echo(text, err=True),
        )
    except NcclRefusedError as error:
        click.echo(f"Error: {error}", err=True)
        ctx.exit(3)
    click.echo("\n".join(lines(report)))
    ctx.exit(report.exit_code)
