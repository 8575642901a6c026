"""The tables of the documentation, made from what is registered.

``python -m tests.house.tables`` writes them between their markers; a test fails where they differ.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gradwire import catalogue, registry
from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory
from tests.house import torch_settings
from tests.house.source import ROOT


def summary(cls: type) -> str:
    first = (inspect.getdoc(cls) or "").partition("\n")[0]
    return first.replace("|", r"\|")


def parameters(cls: type) -> str:
    made = [field for field in dataclasses.fields(cls) if field.init]
    fields = [f"`{field.name}={default(field)!r}`" for field in made]
    return ", ".join(fields).replace("'", '"')


def default(field: dataclasses.Field[object]) -> object:
    """The default of a parameter; another method that is one is made anew for each."""
    missing = field.default is dataclasses.MISSING
    return field.default_factory() if missing and callable(field.default_factory) else field.default


def compressors() -> Iterator[Compressor]:
    for name in registry.names("compressors"):
        yield registry.build("compressors", name)


def methods_short(tier: str) -> Iterator[str]:
    yield "| method | bits an element | error feedback | what it does |"
    yield "|---|---|---|---|"
    for each in (each for each in compressors() if registry.tier("compressors", each.name) == tier):
        bits = catalogue.shown_bits(catalogue.describe(each))
        yield f"| [`{each.name}`](#{each.name}) | {bits} | {each.feedback} | {summary(type(each))} |"


def methods_costs() -> Iterator[str]:
    yield "| method | class | nature | bits an element | state bytes | feedback | memory | aggregation | reference |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in catalogue.methods():
        cells = [
            f"[`{row['name']}`](#{row['name']})",
            row["family"],
            row["nature"],
            catalogue.shown_bits(row),
            catalogue.shown_state(row),
            row["feedback"],
            f"`{row['memory']}`",
            ", ".join(f"`{name}`" for name in row["aggregation"]),
            row["reference"].replace("|", r"\|"),
        ]
        yield f"| {' | '.join(cells)} |"


def methods_declared() -> Iterator[str]:
    yield "| method | parameters | declares | cut at |"
    yield "|---|---|---|---|"
    for each in compressors():
        row = each.properties()
        declares = [flag for flag in catalogue.FLAGS if row[flag]] + ([] if row["fixed_size"] else ["variable size"])
        cells = [
            f"[`{each.name}`](#{each.name})",
            parameters(type(each)),
            ", ".join(declares),
            str(each.alignment or "never"),
        ]
        yield f"| {' | '.join(cells)} |"


def memories() -> Iterator[str]:
    yield "| memory | parameters | bytes an element | what it does |"
    yield "|---|---|---|---|"
    for name in registry.names("memory"):
        cls: type[Memory] = registry.find("memory", name)
        yield f"| [`{name}`](#memory-{name}) | {parameters(cls)} | {4 * len(cls().buffers)} | {summary(cls)} |"


def strategies() -> Iterator[str]:
    yield "| strategy | parameters | what it does |"
    yield "|---|---|---|"
    for name in registry.names("comm"):
        cls = registry.find("comm", name)
        yield f"| [`{name}`](#strategy-{name}) | {parameters(cls)} | {summary(cls)} |"


TABLES: dict[tuple[str, str], Callable[[], Iterator[str]]] = {
    ("docs/methods.md", "overview"): partial(methods_short, "first"),
    ("docs/methods.md", "second tier"): partial(methods_short, "second"),
    ("docs/methods.md", "methods"): methods_costs,
    ("docs/methods.md", "promises"): methods_declared,
    ("docs/methods.md", "memories"): memories,
    ("docs/methods.md", "strategies"): strategies,
    **{
        ("docs/torch_settings.md", marker): partial(torch_settings.wrapper_rows, rows)
        for marker, (rows, _) in torch_settings.TABLES.items()
    },
    ("docs/torch_settings.md", "settings of optimizers"): torch_settings.optimizer_rows,
}
"""(file, marker) -> rows."""


def between(marker: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {marker} -->\n)(.*?)(<!-- end of {marker} -->)", re.DOTALL)


def current(file: str, marker: str) -> str:
    """The text between the markers."""
    found = between(marker).search((ROOT / file).read_text(encoding="utf-8"))
    assert found, f"{file} has no table {marker!r}"
    return found[2]


def wanted(file: str, marker: str) -> str:
    return "".join(f"{row}\n" for row in TABLES[file, marker]())


def write(path: Path, marker: str, table: str) -> None:
    text = between(marker).sub(lambda found: found[1] + table + found[3], path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for file, marker in TABLES:
        write(ROOT / file, marker, wanted(file, marker))
