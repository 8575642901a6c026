"""``gradwire netlab``: real network links between workers on this machine."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradwire._files import replace_text
from gradwire.cli.command_group import CommandGroup, Integer, Number
from gradwire.cli.output import emit, json_option, writable
from gradwire.errors import ConfigError, nearest
from gradwire_lab.netlab import Netlab, remove
from gradwire_lab.netlab.check import LinkRow, check
from gradwire_lab.netlab.each_worker import run_all
from gradwire_lab.netlab.names import INTERFACE, MOST_WORKERS, LabNames
from gradwire_lab.netlab.status import lab_of, labs
from gradwire_lab.netlab.system import require_system
from gradwire_lab.netlab.worker_times import WorkerTimes, in_words, since_first_message
from gradwire_lab.netlab.worker_times_page import page_of_times

__all__ = ["command"]

_workers = click.option(
    "--workers", default=4, show_default=True, type=Integer(2, MOST_WORKERS), help="Namespaces with a link each."
)
_delay = click.option("--delay", default="0ms", metavar="TIME", help="From one worker to another.")


@click.group("netlab", cls=CommandGroup)
def command() -> None:
    """A network namespace for each worker, joined by a bridge, with links of a given rate. Needs root."""


@command.command("up")
@_workers
@click.option(
    "--link", "--rate", "rate", default="1gbit", show_default=True, metavar="RATE", help="As 100mbit, 2.5gbit or none."
)
@_delay
@click.option("--congestion", metavar="NAME", help="TCP's congestion control. Default: as on this machine.")
@json_option
def up_command(workers: int, rate: str, delay: str, congestion: str | None, json_to: str | None) -> None:
    """Make a lab that stays until `gradwire netlab down`."""
    lab = Netlab(workers, rate, delay, congestion=congestion, keep=True)
    row = lab_of(lab.names.id)
    emit(row, json_to, lambda: [_table([row]), Text(_usage(lab.names))])


@command.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--workers", default=2, show_default=True, type=Integer(2, MOST_WORKERS), help="Processes, with a link each."
)
@click.option("--link", default="100mbit", show_default=True, metavar="RATE", help="As 100mbit, 2.5gbit or none.")
@_delay
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=writable,
    help="A page of when each worker computed and waited, and of its link.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def run_command(
    ctx: click.Context, workers: int, link: str, delay: str, timeline: Path | None, program: tuple[str, ...]
) -> None:
    """Run a script of your own on links of a given rate, as `gradwire netlab run --link 100mbit -- python train.py`.

    COMMAND is started once for each worker, with what torchrun would set (RANK, WORLD_SIZE, MASTER_ADDR, ...), so that
    init_process_group("gloo") needs nothing else. What workers write is shown at once. When one fails, the others are
    ended, and its exit code is the command's. With --timeline a line for each worker says how much of its time it
    computed, from the first message to the first end; any script can be watched so, and is not changed.
    """
    if program[0].endswith("torchrun"):
        raise ConfigError(
            f"COMMAND must start one worker, such as `python train.py`: netlab starts {workers} of them, got torchrun"
        )
    with Netlab(workers, link, delay) as lab:
        rate = "no limit" if link == "none" else link
        # On stderr, because stdout is the script's.
        click.echo(f"gradwire netlab: {workers} workers, each with a link of {rate}, until they have ended", err=True)
        times = WorkerTimes()
        code = run_all(lab, program, watch=nullcontext if timeline is None else times.watch)
    if timeline is not None:
        found = since_first_message(times.intervals)
        said = [in_words(worker, intervals) for worker, intervals in enumerate(found) if intervals]
        for line in said or ["the workers sent each other nothing"]:
            click.echo(f"gradwire netlab: {line}", err=True)
        replace_text(timeline, page_of_times(times.intervals, f"gradwire netlab run --link {link} --delay {delay}"))
    ctx.exit(code)


@command.command("down")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="Also labs that a running process made for itself.")
def down_command(ids: tuple[str, ...], every: bool) -> None:
    """End what runs inside labs and take them away: those named, or else all that nobody running owns."""
    require_system()
    known = {row["id"]: row for row in labs()}
    for lab in ids:
        if lab not in known:
            raise ConfigError(f"unknown lab {lab!r}: {nearest(lab, known)}" if known else "there is no lab")
    for lab in ids or [lab for lab, row in known.items() if every or not row["owner"] or row["dead"]]:
        remove(lab)
        click.echo(f"removed {lab}")


@command.command("status")
@json_option
def status_command(json_to: str | None) -> None:
    """List the labs of this machine, with what each worker has sent and received."""
    require_system()
    rows = labs()
    emit(rows, json_to, lambda: [_table(rows)] if rows else [Text("There is no lab.")])


@command.command("check")
@_workers
@click.option(
    "--link", "--rate", "rates", multiple=True, metavar="RATE", help="May be repeated. Default: 100mbit, 1gbit, 10gbit."
)
@_delay
@click.option("--seconds", default=2.0, show_default=True, type=Number(0.1), help="Of each transfer.")
@json_option
@click.pass_context
def check_command(
    ctx: click.Context, workers: int, rates: tuple[str, ...], delay: str, seconds: float, json_to: str | None
) -> None:
    """Measure with TCP whether links have the rate they were given, and whether their counters tell the truth.

    Ends with exit code 1 where a receiver gets less than 90 % of what TCP can have, or anyone more than the rate. What
    this machine does not move without a rate is beyond it, and no link's fault.
    """
    rows = list(check(workers, rates or ("100mbit", "1gbit", "10gbit"), seconds, delay))
    emit([row.as_dict() for row in rows], json_to, lambda: [_measured(rows)])
    if any(row.verdict == "missed" for row in rows):
        ctx.exit(1)


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for head in ("lab", "workers", "link", "tcp", "owner", "bytes sent"):
        table.add_column(head, justify="right" if head in ("workers", "bytes sent") else "left", no_wrap=True)
    for row in rows:
        owner = "kept" if not row["owner"] else f"{row['owner']}, dead" if row["dead"] else str(row["owner"])
        sent = sum(worker["sent"] for worker in row["traffic"])
        table.add_row(row["id"], str(row["workers"]), row["link"], row["congestion"], owner, f"{sent:,}")
    return table


def _usage(names: LabNames) -> str:
    return (
        f"worker 0: ip netns exec {names.worker(0)} COMMAND, interface {INTERFACE}, address {names.address(0)}\n"
        f"take away: gradwire netlab down {names.id}"
    )


def _measured(rows: list[LinkRow]) -> RenderableType:
    title = "Mbit/s of payload: what TCP can have, without a rate, the receivers; bytes counted / sent"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for head in ("link", "transfer", "best", "unshaped", "least", "most", "counted", "verdict"):
        words = head in ("link", "transfer", "verdict")
        table.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        rates = [f"{rate / 1e6:,.1f}" for rate in (row.best, row.unshaped, row.least, row.most)]
        table.add_row(row.link, row.pattern, *rates, f"{row.counted:.3f}", row.verdict)
    return table
