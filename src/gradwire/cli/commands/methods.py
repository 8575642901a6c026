"""``gradwire methods``: every compressor, at once from the files, or with everything that it declares."""

from __future__ import annotations

from typing import Any

import click
from rich import box
from rich.console import RenderableType
from rich.table import Table

from gradwire import registry
from gradwire.cli._method_files import DescribedMethod, described_methods
from gradwire.cli.command_group import METHOD
from gradwire.cli.output import emit, json_option, show
from gradwire.errors import ConfigError, nearest

__all__ = ["command"]

Row = dict[str, Any]

_TIERS = {
    "first": "recommended or well tried",
    "second": "second tier",
    "outside": "of another package",
    "file": "in a file of yours",
}


@click.command("methods")
@click.argument("names", nargs=-1, type=METHOD, metavar="[NAME]...")
@click.option("--declared", is_flag=True, help="Show what each declares and costs, too, which loads torch.")
@json_option
def command(names: tuple[str, ...], declared: bool, json_to: str | None) -> None:
    """List every compressor: what it does, its parameters with their defaults, and its source; or describe those that
    are named, as `gradwire methods qsgd` or `gradwire methods own.py:TopHalf`.

    With --declared or --json, list the properties that each declares at its default parameters. Bits and state bytes
    are for each element of a 1024 x 1024 matrix; "~" marks a payload whose size depends on the data, here of normal
    random values. State: what a worker keeps between steps.
    """
    if not declared and json_to is None:
        known = {each.name: each for each in described_methods()}
        for name in names:
            if name not in known:
                raise ConfigError(f"unknown method {name!r}: {nearest(name, known)}")
        if names:
            click.echo("\n\n".join(_alone(known[name]) for name in names))
        else:
            show(_described([*known.values()]))
        return
    # Here, because it loads torch.
    from gradwire import catalogue

    rows = [catalogue.describe(registry.build("compressors", name)) for name in names] or catalogue.methods()
    emit(rows, json_to, lambda: [_costs(rows), _promises(rows), _sources(rows)])


def _alone(method: DescribedMethod) -> str:
    """One method, as its class describes it, and the call that uses it."""
    given = "".join(f", {name}={value}" for name, value in method.parameters.items() if value)
    use = f"{method.cls}({given[2:]})" if method.cls else f'"{method.name}"{given}'
    page = "" if method.tier in ("outside", "file") else f"\n\nMore: docs/methods/{method.family}.md#{method.name}"
    head = f"{method.name}: {method.family}, {_TIERS[method.tier]}"
    return f"{head}\n\n{method.text or method.summary}\n\nUse: gradwire.compress_ddp(model, {use}){page}"


def _described(methods: list[DescribedMethod]) -> RenderableType:
    table = _grid("method", "family", "tier", "what it does", "parameters", "source")
    for each in methods:
        given = (f"{name}={value}" if value else name for name, value in each.parameters.items())
        table.add_row(each.name, each.family, each.tier, each.summary, ", ".join(given), each.reference)
    return table


def _costs(rows: list[Row]) -> RenderableType:
    from gradwire import catalogue

    table = _grid("method", "class", "nature", "feedback", "memory")
    for name in ("bits", "state bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = catalogue.shown_bits(row), catalogue.shown_state(row)
        nature = {"random": "Rand", "deterministic": "Det"}[row["nature"]]
        words = row["family"], nature, row["feedback"], row["memory"]
        table.add_row(row["name"], *words, *figures)
    return table


def _promises(rows: list[Row]) -> RenderableType:
    table = _grid("method", "aggregation", "rounds", "cut at", "declares")
    for row in rows:
        travels = ", ".join(row["aggregation"]), str(row["rounds"]), str(row["alignment"] or "never")
        table.add_row(row["name"], *travels, _declared(row))
    return table


def _sources(rows: list[Row]) -> RenderableType:
    table = _grid("method", "parameters", "source")
    for row in rows:
        table.add_row(row["name"], _parameters(row["params"]), row["reference"])
    return table


def _grid(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=name == "method")
    return table


def _declared(row: Row) -> str:
    from gradwire import catalogue

    flags = [flag for flag in catalogue.FLAGS if row[flag]]
    return ", ".join(flags if row["fixed_size"] else [*flags, "variable size"])


def _parameters(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in params.items())
