"""``gradwire bench kvstore``: how fast the stores are, alone, beside MXNet's, and over a slow link."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from gradwire.cli.command_group import Integer
from gradwire.cli.output import json_option
from gradwire_lab.commands._rows import RowFile
from gradwire_lab.experiments.shapes import NETWORKS, network_shapes

__all__ = ["command"]

Row = dict[str, Any]
Column = tuple[str, int, Any]
"""The head of a column, its width, and its text for a row."""


@click.command("kvstore")
@click.option("--kv-store", "kind", default="device", show_default=True, metavar="TYPE", help="As for create.")
@click.option("--gc-type", default="none", show_default=True, metavar="TYPE", help="none, 2bit, 1bit or a method.")
@click.option("--gc-threshold", type=float, default=0.5, show_default=True, help="Of 2bit and 1bit.")
@click.option(
    "--network",
    default="resnet18",
    show_default=True,
    help=f"Whose parameters are the keys: one of gradwire models, {', '.join(NETWORKS)}; or shapes as "
    "100x10000,25000000.",
)
@click.option("--devices", type=Integer(1), default=2, show_default=True, help="Senders of each worker.")
@click.option("--workers", type=Integer(1), default=1, show_default=True, help="Processes, of a dist store.")
@click.option("--servers", type=Integer(1), default=1, show_default=True, help="Of a dist store.")
@click.option("--num-batches", type=Integer(1), default=5, show_default=True, help="After one that warms up.")
@click.option("--peer", type=click.Choice(["mxnet"]), help="Side by side with the dist_sync of this one, on loopback.")
@click.option(
    "--peer-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The virtual environment of the peer, made if need be. Default: .peers/NAME.",
)
@click.option("--link", metavar="RATE", help="Over cables of this rate, as 100mbit or 1gbit: see gradwire netlab.")
@click.option("--repeats", type=Integer(1), help="Rounds of each row beside a peer. Default: 7.")
@click.option("--samples", is_flag=True, help="Keep the time of every round in the rows of --json.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    kind: str,
    gc_type: str,
    gc_threshold: float,
    network: str,
    devices: int,
    workers: int,
    servers: int,
    num_batches: int,
    peer: str | None,
    peer_dir: Path | None,
    link: str | None,
    repeats: int | None,
    samples: bool,
    json_to: str | None,
) -> None:
    """Push and pull a network's keys through a store: time, bandwidth of a device, and error of every batch.

    A dist store gets its servers and workers on this machine. With --peer, 2 workers and 1 server of ours and of the
    peer's push and pull one large key and 100 small ones, uncompressed and with 2 bits: first the results are
    compared bit for bit, then they are timed in turns. With --link every server and worker of a dist_sync store is a
    machine of its own, and a step is compared with its bytes over the rate; this needs root.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE}
    if peer is not None and link is not None:
        raise click.UsageError("--peer is on loopback: leave --link out")
    if peer is not None:
        own = {"kind", "devices", "workers", "servers", "num_batches"} & given
        if own:
            raise click.UsageError(
                "--peer measures dist_sync with 2 workers of one device and 1 server: leave "
                f"{', '.join(sorted(_option(ctx, name) for name in own))} out"
            )
        _follow(_against_mxnet(given, gc_type, gc_threshold, network, peer_dir, repeats), PEER, json_to, samples)
        return
    compression: dict[str, Any] | None = None if gc_type == "none" else {"type": gc_type}
    if compression is not None and (gc_type in ("2bit", "1bit") or "gc_threshold" in given):
        compression |= {"threshold": gc_threshold}
    if link is not None:
        _follow(_linked(ctx, given, network, compression, link), LINK, json_to, samples)
        return
    # Here: the other benchmarks need no ZeroMQ.
    from gradwire_lab.bench import bandwidth

    measured = bandwidth.rows(
        network_shapes(network),
        kind,
        compression,
        devices=devices,
        workers=workers,
        servers=servers,
        batches=num_batches,
    )
    _follow(measured, BATCHES, json_to, samples)


def _against_mxnet(
    given: set[str], gc_type: str, gc_threshold: float, network: str, directory: Path | None, repeats: int | None
) -> Iterable[Row]:
    from gradwire_lab.bench import store_comparison

    workloads: Sequence[store_comparison.StoreWorkload] = store_comparison.WORKLOADS
    if "network" in given:
        sizes = [math.prod(shape) for shape in network_shapes(network)]
        workloads = [store_comparison.StoreWorkload(sizes.count(size), size) for size in dict.fromkeys(sizes)]
    types = (gc_type,) if "gc_type" in given else ("none", "2bit")
    return store_comparison.rows(workloads, types, gc_threshold, repeats, directory)


def _linked(
    ctx: click.Context, given: set[str], network: str, compression: dict[str, Any] | None, link: str
) -> Iterable[Row]:
    from gradwire_lab.bench import store_over_link

    wrong = {"kind", "devices"} & given
    if wrong:
        raise click.UsageError(
            "--link measures dist_sync with workers of one device: leave "
            f"{', '.join(sorted(_option(ctx, name) for name in wrong))} out"
        )
    shapes = network_shapes(network) if "network" in given else LINKED
    compressions = [compression] if "gc_type" in given else [None, {"type": "2bit", "threshold": 0.5}]
    workers = ctx.params["workers"] if "workers" in given else 2
    return store_over_link.rows(
        shapes, link, compressions, workers=workers, servers=ctx.params["servers"], batches=ctx.params["num_batches"]
    )


LINKED = [(4_000_000,)]
"""Shapes over a simulated link: at 100 Mbit/s a step of two workers takes five seconds."""


def _option(ctx: click.Context, name: str) -> str:
    return next(param.opts[0] for param in ctx.command.params if param.name == name)


BATCHES: Sequence[Column] = (
    ("batch", 5, lambda row: row["batch"]),
    ("time", 10, lambda row: milliseconds(row["seconds"])),
    ("GB/s of a device", 16, lambda row: f"{row['bandwidth'] / 1e9:.3f}"),
    ("error", 9, lambda row: f"{row['error']:.2g}"),
    ("of the mean", 11, lambda row: f"{row['mean_error']:.2g}"),
)

PEER: Sequence[Column] = (
    ("compression", 11, lambda row: row["compression"]),
    ("keys", 13, lambda row: f"{row['keys']} x {row['size']}"),
    ("op", 9, lambda row: row["op"]),
    ("gradwire", 10, lambda row: milliseconds(row["seconds"])),
    ("mxnet", 10, lambda row: milliseconds(row["mxnet_seconds"])),
    ("ratio", 6, lambda row: f"{row['speedup']:.2f}x"),
    ("goal", 6, lambda row: "" if row["goal"] is None else f"{row['goal']:g}x"),
)


LINK: Sequence[Column] = (
    ("link", 8, lambda row: row["link"]),
    ("compression", 11, lambda row: row["compression"]),
    ("step", 12, lambda row: milliseconds(row["seconds"])),
    ("bytes / rate", 12, lambda row: milliseconds(row["least_seconds"])),
    ("over", 7, lambda row: f"{100 * row['over']:.1f} %"),
)


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds for the table.

    >>> milliseconds(0.01234)
    '12.34 ms'
    """
    return f"{1e3 * seconds:.2f} ms"


def _follow(measured: Iterable[Row], columns: Sequence[Column], json_to: str | None, samples: bool) -> None:
    """Show and store rows as they come or, with ``--json -``, print them as JSON at the end."""
    path = None if json_to in (None, "-") else Path(str(json_to))
    rows: list[Row] = []
    with RowFile(path) if path else nullcontext() as file:
        for row in measured:
            rows.append({name: value for name, value in row.items() if samples or not name.endswith("samples")})
            if json_to != "-":
                if len(rows) == 1:
                    click.echo(f"{row['machine']}; {row['threads']} threads; {row['target']}; torch {row['torch']}")
                    click.echo(" ".join(f"{name:>{width}}" for name, width, _ in columns))
                click.echo(" ".join(f"{text(row):>{width}}" for _, width, text in columns))
            if file is not None:
                file.add(rows[-1])
    if json_to == "-":
        click.echo(json.dumps(rows, indent=2))
