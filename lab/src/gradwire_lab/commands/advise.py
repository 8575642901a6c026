"""``gradwire advise``: does compression pay here, and which method?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer, Number
from gradwire.cli.output import emit, json_option
from gradwire.errors import ConfigError
from gradwire_lab.advise import consult
from gradwire_lab.advise.advice import Advice, AdviceRow
from gradwire_lab.advise.consult import Question, UntimedError
from gradwire_lab.advise.run_optimizer import NAMES
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.experiments.progress import Stages
from gradwire_lab.netlab import Link

__all__ = ["command"]

_LINK_HELP = "Between workers, as 1gbit; with --nodes between nodes."


UNUSED = [
    ("latency", "measure_link", True),
    ("batch", "script", True),
    ("batch", "compute", True),
    ("small", "script", True),
    ("deadline", "script", False),
    ("budget", "codec", True),
    ("intra_link", "nodes", False),
    ("intra_latency", "nodes", False),
]
"""Options that have no effect with another one, or without it."""


@click.command("advise", context_settings={"allow_interspersed_args": True})
@click.option("--model", help="One of gradwire models: its step is measured here, on random examples.")
@click.option("--small", is_flag=True, help="The small variant of the model.")
@click.option("--batch", default=8, show_default=True, type=Integer(1), help="Examples of a worker's step.")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A training script for torchrun, in place of --model: one worker runs it for a few steps. Its own arguments "
    "come last, behind --.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--deadline", default=120.0, show_default=True, metavar="SECONDS", help="For the script.")
@click.option(
    "--compute",
    type=Number(0),
    metavar="SECONDS",
    help="Of a step without exchange, on an accelerator: instead of measuring. Gradients come evenly.",
)
@click.option("--link", default="1gbit", show_default=True, metavar="RATE", help=_LINK_HELP)
@click.option(
    "--latency",
    default="100us",
    show_default=True,
    metavar="TIME",
    help="Of a message over that link, as ping shows it: Gloo's waits for a word of its receiver.",
)
@click.option("--measure-link", is_flag=True, help="Measure latency, and what the processor moves: see docs/advise.md.")
@click.option("--workers", default=4, show_default=True, type=Integer(2), help="In all.")
@click.option("--nodes", type=Integer(2), help="The workers are dealt out to so many machines.")
@click.option("--intra-link", default="100gbit", show_default=True, metavar="RATE", help="Inside a node.")
@click.option("--intra-latency", default="100us", show_default=True, metavar="TIME", help="Of a message inside a node.")
@click.option(
    "--together",
    default=1,
    show_default=True,
    type=Integer(1),
    help="Workers that share one machine like this one, and its cores; codecs are measured that way.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"{METHOD_FORMS}; a name alone has its recommended settings. May be repeated. Default: every one.",
)
@click.option(
    "--optimizer",
    type=click.Choice(NAMES),
    help="Methods that it does not bear are left out. Default: the script's, or that of the model's recipe.",
)
@click.option("--strategy", metavar="NAME", help="Of all methods. Default: each one's own.")
@click.option(
    "--codec",
    metavar="NS,NS",
    help="Nanoseconds an element of encoding, and of decoding one payload, of every method: instead of measuring.",
)
@click.option(
    "--budget",
    default=6.0,
    show_default=True,
    type=Number(0, min_open=True),
    metavar="SECONDS",
    help="For measuring a codec: fewer repeats where they would take longer.",
)
@click.option(
    "--within",
    default=40.0,
    show_default=True,
    type=Number(0, min_open=True),
    metavar="SECONDS",
    help="For all measurements together, a script left out: what is not measured by then, nobody can tell.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, **given: Any) -> None:
    """Predict a step with every method, and say which one to use, or not to compress.

    Measures the step and the codecs here, or takes them as numbers; the model's equations are in docs/advise_model.md.
    Of a large model codecs are timed with a part of the elements first, and the likeliest with all of them.
    """
    for name, other, alone in UNUSED:
        said = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        # A flag that is not given is False; the seconds of --compute may be 0, which equals False.
        there = given[other] is not None and given[other] is not False
        if said and there == alone:
            flag, against = (f"--{each.replace('_', '-')}" for each in (name, other))
            raise ConfigError(f"{flag} has no effect {'with' if alone else 'without'} {against}: leave it out")
    asked = question(given)
    try:
        with Stages(asked.within) as stages:
            advice, facts = consult.answer(asked, stages.begin)
    except UntimedError as error:
        if asked.model is None:
            raise
        rows, verdict = consult.on_the_link(asked), str(error)
        emit({"verdict": verdict, "on_the_link": rows}, json_to, lambda: [f"{verdict}\n", _arithmetic(asked, rows)])
        return
    emit(
        advice.as_dict() | facts,
        json_to,
        lambda: [f"{advice.verdict}\n", _table(advice, facts), *_notes(advice, facts)],
    )


def question(given: dict[str, Any]) -> Question:
    """Build the question from the options of the command line."""
    codec = None if given["codec"] is None else _codec(given["codec"])
    intra = None if given["nodes"] is None else Link.parse(given["intra_link"], given["intra_latency"])
    if given["script"] is None and given["arguments"]:
        raise ConfigError(f"arguments are for --script, got {' '.join(given['arguments'])!r} without it")
    chosen = {text: consult.named(text, parse_method) for text in given["methods"]} or consult.everything()
    names = (
        "model",
        "small",
        "batch",
        "script",
        "arguments",
        "deadline",
        "compute",
        "measure_link",
        "workers",
        "nodes",
        "together",
        "strategy",
        "budget",
        "within",
        "optimizer",
    )
    return Question(
        **{name: given[name] for name in names},
        link=Link.parse(given["link"], given["latency"]),
        inside=intra,
        codec=codec,
        methods=chosen,
    )


def _codec(text: str) -> tuple[float, float]:
    try:
        encode, decode = (1e-9 * float(part) for part in text.split(","))
    except ValueError:
        encode = decode = -1.0
    if not (0 <= encode < 1 and 0 <= decode < 1):
        raise ConfigError(f"--codec must be two numbers of nanoseconds, each >= 0, as 0.5,0.3, got {text!r}")
    return encode, decode


def _arithmetic(asked: Question, rows: list[dict[str, Any]]) -> RenderableType:
    """Show what the link alone says, where no step could be timed."""
    table = Table(
        title=f"{asked.model}, {asked.workers} workers, {asked.link}: the gradients of a step on the link alone"
    )
    table.box, table.show_edge, table.padding = box.SIMPLE_HEAD, False, (0, 1, 0, 0)
    for name in ("method", "MB a step", "seconds on the link", "times as fast"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    plain = rows[0]["seconds"]
    for row in rows:
        times = f"{plain / row['seconds']:.1f}" if row["seconds"] else ""
        table.add_row(row["method"], _megabytes(row["bytes"]), f"{row['seconds']:,.3g}", times)
    return table


def _table(advice: Advice, facts: dict[str, Any]) -> RenderableType:
    title = f"{facts['title']}; times in ms; *: needs another loss scale or optimizer"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", min_width=12)
    for name in ("enc", "wire", "dec", "step", "MB", "faster", "pays below", "points"):
        table.add_column(name, justify="right", no_wrap=True)
    dense = advice.dense
    table.add_row("uncompressed", "", _ms(dense.wire), "", _ms(dense.total), _megabytes(dense.sent))
    for row in advice.rows:
        table.add_row(row.label, *_figures(row), _points(row))
    return table


def _figures(row: AdviceRow) -> tuple[str, ...]:
    step = row.step
    if step is None:
        return ("", "", "", "-", "", "", "")
    even = "never" if row.break_even == 0 else _rate(row.break_even)
    mark = "~" if row.timed else ""
    times = mark + _ms(step.encode), _ms(step.wire), mark + _ms(step.decode), _ms(step.total)
    return (*times, _megabytes(step.sent), f"{row.speedup:.2f}x", even)


def _points(row: AdviceRow) -> str:
    """Format the quality in points above uncompressed training on the digits; "?" if nobody trained with these
    parameters.
    """
    known = "?" if row.quality is None else f"{row.quality.points:+.1f}"
    return known if row.drop_in else f"{known}*"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.2f}"


def _rate(bits: float) -> str:
    if bits == float("inf"):
        return "always"
    return f"{bits / 1e9:,.3g} Gbit" if bits >= 1e9 else f"{bits / 1e6:,.3g} Mbit"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def _notes(advice: Advice, facts: dict[str, Any]) -> list[RenderableType]:
    """Notes below the table: the settings of the best method, methods that were not measured, and those left out."""
    best = advice.best
    settings = [f"{best.label}: {best.settings}"] if best is not None and best.settings else []
    faster = [row.label for row in advice.unknown] if best is not None else []
    told = [f"Not measured, and perhaps faster: {', '.join(faster)}."] if faster else []
    return [*settings, *told, *_left_out(advice), *facts["notes"]]


def _left_out(advice: Advice) -> list[RenderableType]:
    """One line for each reason why candidates were left out."""
    reasons: dict[str, list[str]] = {}
    for row in advice.rows:
        if row.skipped:
            reasons.setdefault(row.skipped, []).append(row.label)
    return [f"{', '.join(labels)} left out: {reason}" for reason, labels in reasons.items()]
