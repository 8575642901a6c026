"""``gradwire bench``: what compression costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress

from gradwire.cli.command_group import METHOD, METHOD_FORMS, CommandGroup, Integer, Number
from gradwire.cli.output import json_option, writable
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire_lab.bench import codec, peers
from gradwire_lab.bench.steps import STEPS
from gradwire_lab.commands import _bench_exchange, _bench_launches, _kvstore
from gradwire_lab.commands._lines import goal_lines, head, line, skipped_lines
from gradwire_lab.commands._options import parse_size
from gradwire_lab.commands._rows import RowFile
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.report import write_violins

__all__ = ["command"]

Row = dict[str, Any]

_PEER_WIDTH = 24
"""The width of the names in the table of a peer, which only its rows know."""


@click.group("bench", cls=CommandGroup)
def command() -> None:
    """Measure what compression costs on this machine."""


command.add_command(_bench_exchange.exchange_command)
command.add_command(_bench_launches.launches_command)
command.add_command(_kvstore.command)


@command.command("codec")
@click.option("--all", "every", is_flag=True, help="Every registered compressor, which is also the default.")
@click.option("--method", "methods", multiple=True, type=METHOD, help=f"{METHOD_FORMS}; may be repeated.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="N",
    help="Elements, as 16777216 or 2^24; may be repeated. Default: 2^12 to 2^26 in factors of 4.",
)
@click.option("--repeats", type=Integer(1), help="Rounds of each row. Default: what a second allows.")
@click.option(
    "--budget",
    type=Number(0, min_open=True),
    default=codec.BUDGET,
    show_default=True,
    metavar="SECONDS",
    help="Skip a row that would take longer, by what the size before it took.",
)
@click.option("--threads", type=Integer(1), help="Default: as many as torch uses, all cores.")
@click.option(
    "--busy",
    type=Integer(1),
    metavar="N",
    help="Let N processes compute in every second turn: how much slower an operation is, divided by how much slower "
    "torch's addition of as many bytes is.",
)
@click.option(
    "--plot",
    "plot_to",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=writable,
    metavar="FILE",
    help="Write violins of the latency of compressing and decompressing to FILE, an HTML page.",
)
@click.option("--goals", is_flag=True, help="Say at the end which operations miss the goals for their speed.")
@click.option("--samples", is_flag=True, help="Keep the time of every call in the rows of --json.")
@click.option("--peer", metavar="NAME", help=f"Compare with another implementation: {', '.join(peers.names())}.")
@click.option(
    "--peer-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The peer's virtual environment, made if need be; of grace a checkout. Default: .peers/NAME.",
)
@json_option
def codec_command(
    every: bool,
    methods: tuple[str, ...],
    sizes: tuple[str, ...],
    repeats: int | None,
    budget: float,
    threads: int | None,
    busy: int | None,
    plot_to: Path | None,
    goals: bool,
    samples: bool,
    peer: str | None,
    peer_dir: Path | None,
    json_to: str | None,
) -> None:
    """Time the operations of the compressors beside a triad that moves as many bytes.

    Triad: 1.0 means as fast as this machine's memory. Nanoseconds, bits and state bytes are for each element. Each
    result is compared with the plain-torch reference, bit for bit, before it is timed. A size that would take too long
    is skipped, and its row says so. Every row is printed, and is in the file of --json, as soon as it was measured;
    Ctrl-C ends the run with what there is.
    """
    if peer and (methods or every or plot_to or goals or busy):
        raise click.UsageError(
            "--method, --all, --plot, --goals and --busy cannot be used with --peer: a peer brings its own method"
        )
    if methods and every:
        raise click.UsageError("--all means every method: leave --method out")
    numbers = [parse_size(text) for text in sizes]
    if peer:
        found = peers.find(peer)
        run = _Run(found.row_count(numbers), _PEER_WIDTH, json_to, samples)
        measured = found.rows(numbers, repeats, peer_dir)
    else:
        chosen = [parse_method(text) for text in methods] or codec.registered()
        numbers = numbers or list(codec.SIZES)
        run = _Run(len(chosen) * len(numbers) * len(STEPS), _width(chosen), json_to, samples)
        measured = codec.rows(chosen, numbers, repeats, budget, busy or 0)
    with _threads(threads):
        complete = run.follow(measured)
    run.finish(goals)
    if plot_to is not None and run.rows:
        write_violins(run.rows, plot_to)
    if not complete:
        raise KeyboardInterrupt


class _Run:
    """A sink for rows, which shows and stores each at once: in the table or, with ``--json -``, as JSON at the end.

    Args:
        total: rows that are expected.
        width: characters of the longest name of a method.
        json_to: path or "-", as given on the command line.
        samples: true: stored rows keep the time of every call.
    """

    def __init__(self, total: int, width: int, json_to: str | None, samples: bool) -> None:
        self.rows: list[Row] = []
        self._total, self._width, self._samples = total, width, samples
        self._only_json = json_to == "-"
        self._path = None if self._only_json or json_to is None else Path(json_to)

    def follow(self, measured: Iterable[Row]) -> bool:
        """Take all rows; return False if Ctrl-C came before the last one."""
        with _bar(self._total) as bar, RowFile(self._path) if self._path else nullcontext() as file:
            try:
                for row in measured:
                    self.rows.append(row)
                    try:
                        # First, so that whoever sees a row finds it in the file; but shown it is if the disk is full.
                        if file is not None:
                            file.add(self._stored(row))
                    except OSError:
                        self._show(row, bar)
                        raise
                    self._show(row, bar)
            except KeyboardInterrupt:
                return False
        return True

    def finish(self, goals: bool) -> None:
        """Print the lines below the table, or the JSON that replaces the table."""
        if self._only_json:
            click.echo(json.dumps([self._stored(row) for row in self.rows], indent=2))
            return
        for text in skipped_lines(self.rows) + (goal_lines(self.rows) if goals else []):
            click.echo(text)

    def _stored(self, row: Row) -> Row:
        return row if self._samples else {name: value for name, value in row.items() if name != "samples"}

    def _show(self, row: Row, bar: Progress) -> None:
        """Print a line; the progress bar is hidden meanwhile, because both may share a terminal."""
        bar.stop()
        if not self._only_json:
            for text in [*(head(row, self._width) if len(self.rows) == 1 else []), line(row, self._width)]:
                click.echo(text)
        bar.update(bar.task_ids[0], completed=len(self.rows), description=f"{row['method']} {row['op']} {row['size']}")
        bar.start()


def _width(chosen: Sequence[Compressor]) -> int:
    """The length of the longest name of a method in the table."""
    return max(len(codec.label({"method": code.name, **capabilities.properties(code)})) for code in chosen)


def _bar(total: int) -> Progress:
    """Make a progress bar on standard error; it moves between two rows and never during a measurement."""
    console = Console(stderr=True)
    bar = Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    bar.add_task("codec", total=total)
    return bar


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
