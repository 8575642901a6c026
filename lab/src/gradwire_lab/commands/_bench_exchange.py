"""``gradwire bench exchange``: what averaging a model's gradients costs, beside a plain all-reduce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer, Number
from gradwire.cli.output import counted, emit, json_option
from gradwire_lab.bench.exchange import ALL_REDUCE, DEVICES, ExchangePlan, Rival, exchange_rows
from gradwire_lab.bench.neighbours import neighbours
from gradwire_lab.commands._markers import check_markers, markdown_option, write_tables
from gradwire_lab.experiments.exchange_in_ddp import ddp_rows
from gradwire_lab.experiments.method_text import method_of
from gradwire_lab.experiments.shapes import network_shapes

__all__ = ["exchange_command", "markdown"]

Row = dict[str, Any]

PLAIN = Rival(ALL_REDUCE)

METHODS = ("torch_bf16", "torch_powersgd", "bf16", "twobit", "onebit", "qsgd", "topk", "powersgd")
"""Methods that are measured where none is named."""

HEADS = ("operations", "collectives", "reads back", "bytes an element", "sent", "ms", "beside ms", "ratio")


@click.command("exchange")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A name of `gradwire models`, or shapes as 100x10000,25000000; may be repeated. Default: resnet50.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"{METHOD_FORMS}; torch_bf16, torch_fp16 and torch_powersgd are torch's own hooks; may be "
    f"repeated. Default: {', '.join(METHODS)}.",
)
@click.option("--ranks", "ranks", multiple=True, type=Integer(2, 64), help="May be repeated. Default: 4.")
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="cpu",
    show_default=True,
    help="cpu: real ranks over Gloo on this machine. meta: no device and no elements; counts what an accelerator "
    "would be asked for.",
)
@click.option(
    "--bucket-mb",
    type=Number(0, 1e6, min_open=True),
    metavar="MB",
    help="Cut the gradients into buckets as DDP does with this bucket_cap_mb. Default: one bucket of all.",
)
@click.option(
    "--ddp",
    is_flag=True,
    help="Measure compress_ddp in a backward pass that computes nothing, beside DDP without a hook. Default method: "
    "none.",
)
@click.option("--busy", default=0, show_default=True, type=Integer(0, 256), help="Processes that compute beside it.")
@click.option(
    "--budget",
    default=10.0,
    show_default=True,
    type=Number(0, 1e6, min_open=True),
    metavar="SECONDS",
    help="That the steps of a method may take; 5 are made in any case.",
)
@markdown_option
@json_option
@click.pass_context
def exchange_command(
    ctx: click.Context,
    models: tuple[str, ...],
    methods: tuple[str, ...],
    ranks: tuple[int, ...],
    device: str,
    bucket_mb: float | None,
    ddp: bool,
    busy: int,
    budget: float,
    markdown_to: Path | None,
    json_to: str | None,
) -> None:
    """Count and time what averages the gradients of a model, with each method, beside a plain all-reduce.

    An operation is what works on a device; views and empty allocations are none. A result is checked before it is
    timed. Ends with exit code 1 where one is wrong.
    """
    table = f"exchange {'ddp' if ddp else device}"
    check_markers(markdown_to, table)
    plans = [
        ExchangePlan(model, network_shapes(model), world, device, bucket_mb, budget, busy)
        for model in models or ("resnet50",)
        for world in ranks or (4,)
    ]
    rivals = [_rival(text) for text in methods or (("none",) if ddp else METHODS)]
    with neighbours(busy):
        beside = partial(exchange_rows, rivals=[PLAIN, *rivals], host=True)
        measured = [ddp_rows(plan, rivals) if ddp else beside(plan) for plan in plans]
        rows = list(_reported(chain.from_iterable(measured)))
    emit(rows, json_to, lambda: list(_tables(rows)))
    if markdown_to is not None:
        write_tables(markdown_to, {table: markdown(rows)})
    if any("error" in row for row in rows):
        ctx.exit(1)


def _rival(text: str) -> Rival:
    method = method_of(text, own=True)
    return Rival(text, hook=method.hook) if method.hook is not None else Rival(text, method.compressor)


def _reported(rows: Iterable[Row]) -> Iterator[Row]:
    """Collect the rows, reporting each on standard error as it arrives, because a run takes minutes."""
    for row in rows:
        said = row.get("error") or row.get("skipped") or f"{1e3 * row['seconds']:.2f} ms"
        click.echo(f"{row['model']}, {row['ranks']} ranks, {row['method']}: {said}", err=True)
        yield row


def _cells(row: Row) -> list[str]:
    """The figures of a row in the order of ``HEADS``; what was not measured is a dash."""
    names = ("operations", "collectives", "synchronisations")
    counts = [f"{row[name]:,}" if name in row else "-" for name in names]
    moved = [f"{row[name] / row['parameters']:.2f}" if name in row else "-" for name in ("bytes_moved", "bytes_sent")]
    times = [f"{1e3 * row[name]:.2f}" if name in row else "-" for name in ("seconds", "all_reduce_seconds")]
    return [*counts, *moved, *times, f"{row['ratio']:.2f}" if "ratio" in row else "-"]


def _grouped(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in ("model", "ranks", "device", "bucket_mb", "busy")), []).append(row)
    return found


def _title(row: Row) -> str:
    buckets = counted(row["buckets"], "bucket") if "buckets" in row else "no figures"
    busy = f", {row['busy']} busy neighbours" if row["busy"] else ""
    size = f"{row['model']}, {row['parameters']:,} parameters in {row['tensors']} tensors"
    return f"{size}, {row['ranks']} ranks, {row['device']}, {buckets}{busy}"


def _tables(rows: Sequence[Row]) -> Iterator[RenderableType]:
    for group in _grouped(rows).values():
        table = Table("method", title=_title(group[0]), box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for head in HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        for row in group:
            table.add_row(row["method"], *_cells(row))
        yield table
        hosts = [f"{row['method']} {1e6 * row['host_seconds']:.0f}" for row in group if "host_seconds" in row]
        if hosts:
            yield f"host, microseconds for a bucket of 1,024 elements in 4 tensors: {', '.join(hosts)}"
    for row in rows:
        if said := row.get("error") or row.get("skipped"):
            yield f"{row['model']}, {row['ranks']} ranks, {row['method']}: {said}"


def markdown(rows: Sequence[Row]) -> str:
    """The tables as a page has them, one for each model and number of ranks."""
    texts = []
    for group in _grouped(rows).values():
        where = f"{group[0]['machine']}, torch {group[0]['torch']}"
        lines = [f"{_title(group[0])}; {where}:", "", f"| method | {' | '.join(HEADS)} |"]
        lines.append("|---|" + "---:|" * len(HEADS))
        lines += [f"| `{row['method']}` | {' | '.join(_cells(row))} |" for row in group]
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)
