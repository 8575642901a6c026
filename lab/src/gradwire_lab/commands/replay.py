"""``gradwire replay``: the gradients of a full-size model over a real link, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer, Number
from gradwire.frontends.setup import is_auto
from gradwire_lab.commands._options import appendable, budget_option, steps_option
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.records import append_line
from gradwire_lab.experiments.replay import GRADIENTS, HOOKS, Contestant, ReplayPlan, replay
from gradwire_lab.netlab import Link

__all__ = ["command"]

Row = dict[str, Any]


@click.command("replay")
@click.argument("model")
@click.option("--small", is_flag=True, help="The small variant of the model.")
@click.option("--workers", default=4, show_default=True, type=Integer(2, 64), help="Worker processes.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="RATE",
    help="As 100mbit, or none: the loopback. Needs root; may be repeated. Default: none.",
)
@click.option("--delay", default="0ms", show_default=True, metavar="TIME", help="Of the links.")
@click.option("--method", "methods", multiple=True, type=METHOD, help=f"{METHOD_FORMS}; may be repeated.")
@click.option("--strategy", metavar="NAME", help="Of all methods. Default: each one's own.")
@click.option("--baseline", is_flag=True, help="Plain DDP too, and the speed-up over it.")
@click.option(
    "--hook", "hooks", multiple=True, type=click.Choice(HOOKS[1:]), help="A hook that torch brings; may be repeated."
)
@steps_option(10, 3, "That count, after two others.")
@budget_option(60.0, "Make fewer steps, but at least 3, where they would take longer.")
@click.option(
    "--compute",
    default=0.0,
    show_default=True,
    type=Number(0),
    metavar="SECONDS",
    help="Of a pretended backward pass, beside which gradients travel.",
)
@click.option(
    "--gradients",
    default="normal",
    show_default=True,
    type=click.Choice(GRADIENTS),
    help="normal: alike in all layers. trained: a shared signal and noise, with heavy tails, by layer.",
)
@click.option("--samples", is_flag=True, help="Keep the time of every step in the rows of --json.")
@click.option(
    "--json",
    "json_to",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Append a JSON line for each row to FILE; '-' writes them to standard output, and nothing else.",
)
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    small: bool,
    workers: int,
    links: tuple[str, ...],
    delay: str,
    methods: tuple[str, ...],
    strategy: str | None,
    baseline: bool,
    hooks: tuple[str, ...],
    steps: int,
    budget: float,
    compute: float,
    gradients: str,
    samples: bool,
    json_to: str | None,
) -> None:
    """Exchange the gradients of MODEL between local workers, and time a step of each method on each link.

    The gradients have the shapes of the real model, go through DDP and the exchange that training uses, and are random.
    A row that failed says why, and ends the command with exit code 1.
    """
    options = {} if strategy is None else {"strategy": strategy}
    chosen = [Contestant("ddp")] if baseline else []
    chosen += [Contestant(name) for name in hooks]
    chosen += [Contestant(text, text if is_auto(text) else parse_method(text), options) for text in methods]
    if not chosen:
        raise click.UsageError("nothing to replay: give --method, --hook or --baseline")
    if json_to not in (None, "-"):
        appendable(Path(str(json_to)))
    wanted = [Link.parse(link, delay).in_lab() for link in links or ("none",)]
    plans = [ReplayPlan(model, small, workers, link, steps, budget, compute, gradients) for link in wanted]
    failed = False
    for plan in plans:
        for row in replay(plan, chosen):
            failed = failed or "error" in row
            kept = row if samples else {key: value for key, value in row.items() if key != "samples"}
            _show(kept, json_to)
    if failed:
        ctx.exit(1)


def _show(row: Row, json_to: str | None) -> None:
    text = json.dumps(row)
    if json_to == "-":
        click.echo(text)
        return
    try:
        if json_to is not None:
            append_line(Path(json_to), text)
    finally:
        click.echo(_line(row))


def _line(row: Row) -> str:
    begin = f"{row['model']}, {row['workers']} workers, {row['link']}: {row['method']:<24}"
    if "error" in row:
        return f"{begin} {row['error']}"
    sent = row["bytes_sent"] if row["interface_bytes"] is None else row["interface_bytes"]
    bytes_sent = "" if sent is None else f"{sent / 1e6:12,.3f} MB"
    speedup = f"{row['speedup']:7.2f}x" if "speedup" in row else f"{'':8}"
    return f"{begin} {1e3 * row['seconds']:10,.1f} ms {speedup} {bytes_sent}"
