"""``gradwire bench``: what compression costs on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from rich import box
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table

from gradwire import registry
from gradwire.bench import codec, peers
from gradwire.bench.steps import STEPS
from gradwire.cli._options import parse_method, parse_size
from gradwire.cli._output import emit, json_option

__all__ = ["command"]

Row = dict[str, Any]


@click.group("bench")
def command() -> None:
    """Measure what compression costs on this machine."""


@command.command("codec")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="METHOD",
    help="NAME or NAME:PARAMETER=VALUE,...; may be repeated. Default: every compressor.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="N",
    help="Elements, as 16777216 or 2^24; may be repeated. Default: 2^12 to 2^26 in factors of 4.",
)
@click.option("--repeats", type=click.IntRange(1), help="Rounds of each row. Default: what a second allows.")
@click.option("--threads", type=click.IntRange(1), help="Default: as many as torch uses, all cores.")
@click.option("--peer", metavar="NAME", help=f"Compare with another implementation: {', '.join(peers.names())}.")
@click.option(
    "--peer-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The virtual environment of the peer, made if need be. Default: .peers/NAME.",
)
@json_option
def codec_command(
    methods: tuple[str, ...],
    sizes: tuple[str, ...],
    repeats: int | None,
    threads: int | None,
    peer: str | None,
    peer_dir: Path | None,
    json_to: str | None,
) -> None:
    """Time the operations of the compressors beside a triad that moves as many bytes.

    A triad_ratio of 1.0 means: as fast as this machine's memory. Each result is compared with the plain-torch
    reference, bit for bit, before it is timed.
    """  # fmt: skip
    if peer and methods:
        raise click.UsageError("--method cannot be used with --peer: a peer brings its own method")
    numbers = [parse_size(text) for text in sizes]
    with _threads(threads):
        if peer:
            found = peers.find(peer)
            rows = _tracked(found.rows(numbers, repeats, peer_dir), found.row_count(numbers), f"beside {peer}")
        else:
            chosen = [parse_method(text) for text in methods] or codec.registered()
            numbers = numbers or list(codec.SIZES)
            rows = _tracked(codec.rows(chosen, numbers, repeats), len(chosen) * len(numbers) * len(STEPS), "codec")
    emit(rows, json_to, lambda: [_table(rows)])


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
    for name in ("time", "GB/s", "of triad", "bits/elt", *(["speedup"] if "speedup" in first else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(_method(row), str(row["size"]), row["op"], *_figures(row))
    return table


def _method(row: Row) -> str:
    """As one would write it after --method; parameters at their defaults are left out."""
    defaults = registry.build("compressors", row["method"]).properties()["params"]
    changed = ",".join(f"{name}={value}" for name, value in row["params"].items() if value != defaults[name])
    label = f"{row['method']}:{changed}" if changed else row["method"]
    return f"{row['implementation']} {label}" if "implementation" in row else label


def _figures(row: Row) -> list[str]:
    bandwidth = row["bytes_moved"] / row["seconds"] / 1e9
    ratio, bits = row["triad_ratio"], row["wire_bits_per_element"]
    figures = [_time(row["seconds"]), f"{bandwidth:.1f}", f"{ratio:.2f}", f"{bits:.3f}"]
    return [*figures, f"{row['speedup']:.1f}x"] if "speedup" in row else figures


def _time(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> _time(0.0123), _time(0.0000042)
    ('12.30 ms', '4.2 us')
    """
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
