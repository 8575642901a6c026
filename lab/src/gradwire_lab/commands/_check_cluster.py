"""``gradwire check cluster``: what do the hosts that will train gain?"""

from __future__ import annotations

import math
import os

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Number
from gradwire.cli.output import emit, json_option
from gradwire_lab.commands._lines import time_text
from gradwire_lab.experiments.cluster_check import METHODS, ClusterPlan, ClusterReport, check_cluster
from gradwire_lab.experiments.shapes import network_shapes

__all__ = ["cluster_command"]


@click.command("cluster")
@click.option(
    "--model",
    default="resnet50",
    show_default=True,
    metavar="NAME",
    help="A name of `gradwire models`, or its number of parameters, as 124000000.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"{METHOD_FORMS}; may be repeated. Default: what auto tries.",
)
@click.option("--compute", type=Number(0.0), metavar="SECONDS", help="That a step computes, to say what it gains.")
@click.option("--timeout", default=180.0, show_default=True, type=Number(0.0), help="Seconds to wait for other hosts.")
@json_option
def cluster_command(
    model: str,
    methods: tuple[str, ...],
    compute: float | None,
    timeout: float,
    json_to: str | None,
) -> None:
    """Measure the links between the hosts that will train, and what an exchange of the model's gradients takes on them,
    over Gloo.

    Start it as the training, on each host: `torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint
    HOST:29500 -m gradwire check cluster --model 124000000 --compute 0.5`. Rank 0 shows the result.
    """
    count = sum(map(math.prod, network_shapes(model)))
    report = check_cluster(ClusterPlan(count, methods or METHODS, compute, timeout))
    if os.environ["RANK"] == "0":
        emit(report.as_dict(), json_to, lambda: lines(report, count))


def lines(report: ClusterReport, parameters: int) -> list[RenderableType]:
    """Show who takes part, the link, and a row for each method."""
    hosts: dict[str, list[int]] = {}
    for rank, each in enumerate(report.ranks):
        hosts.setdefault(f"{each['host']}, interface {each['interface']}, {each['gpus']} GPUs", []).append(rank)
    shown: list[RenderableType] = [
        f"{name}: rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" for name, ranks in hosts.items()
    ]
    shown += [f"WARNING: {name} has different versions on the ranks; install the same" for name in report.differences]
    shown.append(
        f"{report.backend}: {report.bits_per_second / 1e6:,.0f} Mbit/s of payload in an all-reduce, "
        f"{1e3 * report.latency:.3g} ms from rank to rank"
    )
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title = f"{parameters:,} parameters, float32 gradients"
    for head in ("method", "exchange", "times as fast", *(["step expected", "gain"] if report.steps else [])):
        table.add_column(head, justify="left" if head == "method" else "right")
    plain, step = report.exchanges.get("none"), report.steps.get("none")
    for name, seconds in report.exchanges.items():
        row = [name, time_text(seconds), f"{plain / seconds:.1f}" if plain else ""]
        if report.steps:
            row += [time_text(report.steps[name]), f"{step / report.steps[name]:.2f}x" if step else ""]
        table.add_row(*row)
    return [*shown, table, _verdict(report)]


def _verdict(report: ClusterReport) -> str:
    plain = report.exchanges.get("none")
    best = min(report.exchanges.values())
    if plain is None:
        return "Add --method none to compare."
    if plain < 1.5 * best:
        return "The link is fast enough: compression gains next to nothing here."
    least = f"A step that waits for its exchange waits up to {time_text(plain - best)} less."
    return f"{least} gradwire.compress_ddp(model) chooses by measuring your training."
