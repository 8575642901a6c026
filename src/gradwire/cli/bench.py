"""``gradwire bench``: what compression costs on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gradwire.bench import codec, peers
from gradwire.bench.plot import write_violins
from gradwire.bench.steps import STEPS
from gradwire.cli._options import parse_method, parse_size
from gradwire.cli._output import emit, json_option

__all__ = ["command"]

Row = dict[str, Any]


@click.group("bench")
def command() -> None:
    """Measure what compression costs on this machine."""


@command.command("codec")
@click.option("--all", "every", is_flag=True, help="Every registered compressor, which is also the default.")
@click.option(
    "--method", "methods", multiple=True, metavar="METHOD", help="NAME or NAME:PARAMETER=VALUE,...; may be repeated."
)
@click.option(
    "--size", "sizes", multiple=True, metavar="N",
    help="Elements, as 16777216 or 2^24; may be repeated. Default: 2^12 to 2^26 in factors of 4.",
)  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), help="Rounds of each row. Default: what a second allows.")
@click.option(
    "--budget", type=click.FloatRange(0, min_open=True), default=codec.BUDGET, show_default=True, metavar="SECONDS",
    help="Skip a row that would take longer, by what the size before it took.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Default: as many as torch uses, all cores.")
@click.option(
    "--plot", "plot_to", type=click.Path(path_type=Path, dir_okay=False, writable=True), metavar="FILE",
    help="Write violins of the latency of compressing and decompressing to FILE, an HTML page.",
)  # fmt: skip
@click.option("--samples", is_flag=True, help="Keep the time of every call in the rows of --json.")
@click.option("--peer", metavar="NAME", help=f"Compare with another implementation: {', '.join(peers.names())}.")
@click.option(
    "--peer-dir", type=click.Path(path_type=Path, file_okay=False),
    help="The virtual environment of the peer, made if need be. Default: .peers/NAME.",
)  # fmt: skip
@json_option
def codec_command(
    every: bool,
    methods: tuple[str, ...],
    sizes: tuple[str, ...],
    repeats: int | None,
    budget: float,
    threads: int | None,
    plot_to: Path | None,
    samples: bool,
    peer: str | None,
    peer_dir: Path | None,
    json_to: str | None,
) -> None:
    """Time the operations of the compressors beside a triad that moves as many bytes.

    Triad: 1.0 means as fast as this machine's memory. Bits and state bytes are for each element. Each result is
    compared with the plain-torch reference, bit for bit, before it is timed. A size that would take too long is
    skipped, and its row says so.
    """
    if peer and (methods or every or plot_to):
        raise click.UsageError("--method, --all and --plot cannot be used with --peer: a peer brings its own method")
    if methods and every:
        raise click.UsageError("--all means every method: leave --method out")
    numbers = [parse_size(text) for text in sizes]
    with _threads(threads):
        if peer:
            found = peers.find(peer)
            rows = _tracked(found.rows(numbers, repeats, peer_dir), found.row_count(numbers), f"beside {peer}")
        else:
            chosen = [parse_method(text) for text in methods] or codec.registered()
            numbers = numbers or list(codec.SIZES)
            measured = codec.rows(chosen, numbers, repeats, budget)
            rows = _tracked(measured, len(chosen) * len(numbers) * len(STEPS), "codec")
    if plot_to is not None:
        write_violins(rows, plot_to)
    emit(rows if samples else [_without_samples(row) for row in rows], json_to, lambda: [_table(rows)])


def _without_samples(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "samples"}


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tracked(rows: Iterable[Row], total: int, title: str) -> list[Row]:
    """All rows, with a progress bar on standard error that moves between two rows and never during one."""
    done: list[Row] = []
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task(title, total=total)
        for row in rows:
            done.append(row)
            progress.update(
                task, advance=1, description=f"{title}: {row['method']} {row['op']} {row['size']}", refresh=True
            )
    return done


def _table(rows: list[Row]) -> RenderableType:
    first = rows[0]
    title = f"{first['machine']}; {first['threads']} threads; {first['target']}; torch {first['torch']}"
    table = Table("method", title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("op", no_wrap=True)
    figures = "time", "GB/s", "triad", "bits", *(["speedup"] if "speedup" in first else ["state"])
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown = ["skipped"] if "skipped" in row else _figures(row)
        table.add_row(_method(row), str(row["size"]), row["op"], *shown)
    return Group(table, *_skipped(rows))


def _skipped(rows: list[Row]) -> list[RenderableType]:
    """A line for each method and size that was left out, with the first reason."""
    reasons: dict[tuple[str, int], str] = {}
    for row in rows:
        if "skipped" in row:
            reasons.setdefault((codec.label(row), row["size"]), f"{row['op']} {row['skipped']}")
    return [Text(f"skipped: {method}, {size} elements: {reason}") for (method, size), reason in reasons.items()]


def _method(row: Row) -> str:
    return f"{row['implementation']} {codec.label(row)}" if "implementation" in row else codec.label(row)


def _figures(row: Row) -> list[str]:
    bandwidth = row["bytes_moved"] / row["seconds"] / 1e9
    ratio, bits = row["triad_ratio"], row["wire_bits_per_element"]
    last = f"{row['speedup']:.1f}x" if "speedup" in row else f"{row['state_bytes_per_element']:.3g}"
    return [_time(row["seconds"]), f"{bandwidth:.1f}", f"{ratio:.2f}", f"{bits:.3f}", last]


def _time(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> _time(0.0123), _time(0.0000042)
    ('12.30 ms', '4.2 us')
    """
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
