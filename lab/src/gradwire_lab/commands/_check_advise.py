"""``gradwire check advise``: are the advisor's predictions right on this machine?"""

from __future__ import annotations

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire.cli.command_group import METHOD, METHOD_FORMS, Integer
from gradwire.cli.output import json_option, show
from gradwire_lab.advise.check import SHARE, WITHIN, Compared, Setting, compare, holds
from gradwire_lab.commands._options import budget_option, steps_option
from gradwire_lab.commands._rows import stored
from gradwire_lab.experiments.method_text import parse_method
from gradwire_lab.netlab import Link

__all__ = ["advise_command"]

METHODS = ("twobit:threshold=auto", "onebit", "topk", "powersgd", "qsgd")
MODELS, WORKERS, LINKS = ("resnet9", "vgg16_cifar"), (2, 4), ("100mbit", "1gbit")


@click.command("advise")
@click.option("--model", "models", multiple=True, help=f"May be repeated. Default: {', '.join(MODELS)}.")
@click.option("--small", is_flag=True, help="The small variants of the models.")
@click.option("--workers", multiple=True, type=Integer(2, 64), help="May be repeated. Default: 2 and 4.")
@click.option("--link", "links", multiple=True, metavar="RATE", help=f"Default: {' and '.join(LINKS)}.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=METHOD,
    help=f"{METHOD_FORMS}; may be repeated; no compression comes in addition.",
)
@steps_option(7, 3, "Of each measured row, at most.")
@budget_option(8.0, "Make fewer steps, but at least 3, where they would take longer.")
@json_option
@click.pass_context
def advise_command(
    ctx: click.Context,
    models: tuple[str, ...],
    small: bool,
    workers: tuple[int, ...],
    links: tuple[str, ...],
    methods: tuple[str, ...],
    steps: int,
    budget: float,
    json_to: str | None,
) -> None:
    """Compare predicted steps with steps over a netlab; needs root.

    Ends with exit code 1 unless 90 % of the combinations are within 20 % of the measured step. The default is 48 of
    them and takes about 10 minutes on two idle cores.
    """
    setting = Setting(
        models or MODELS,
        workers or WORKERS,
        [Link.parse(link) for link in links or LINKS],
        {text: parse_method(text) for text in methods or METHODS},
        steps,
        budget,
        small,
    )
    rows: list[Compared] = []
    with stored(json_to) as store:
        for row in compare(setting, _report_line):
            rows.append(row)
            store(row.as_dict())
            click.echo(_line(row), err=True)
    if json_to != "-":
        show(_table(rows))
    if not holds(rows):
        ctx.exit(1)


def _report_line(line: str) -> None:
    click.echo(line, err=True)


def _line(row: Compared) -> str:
    begin = f"{row.model}, {row.workers} workers, {row.link}: {row.method:<24}"
    if row.step is None or row.measured is None:
        return f"{begin} {row.error}"
    return f"{begin} predicted {1e3 * row.step.total:9,.1f} ms, measured {1e3 * row.measured:9,.1f} ms, {row.off:+.0%}"


def _table(rows: list[Compared]) -> RenderableType:
    good = sum(row.good for row in rows)
    title = f"{good} of {len(rows)} within {WITHIN:.0%}; {SHARE:.0%} are needed; times in ms"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("step", overflow="fold", min_width=22)
    for name in ("alone", "enc", "wire", "dec", "predicted", "measured", "off"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(f"{row.model} x{row.workers} {row.link} {row.method}", *_figures(row))
    return table


def _figures(row: Compared) -> tuple[str, ...]:
    step = row.step
    terms = [] if step is None else [step.compute, step.encode, step.wire, step.decode, step.total]
    measured = "" if row.measured is None else f"{1e3 * row.measured:,.1f}"
    off = "failed" if row.off is None else f"{row.off:+.0%}"
    return (*([f"{1e3 * each:,.1f}" for each in terms] or [""] * 5), measured, off)
