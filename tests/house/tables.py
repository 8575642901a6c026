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
from gradwire.compressors import capabilities
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
    yield "| method | family | bits an element | residual | what it does |"
    yield "|---|---|---|---|---|"
    for each in (each for each in compressors() if registry.tier("compressors", each.name) == tier):
        family = registry.family("compressors", each.name)
        link, bits = f"[`{each.name}`]({family}.md#{each.name})", catalogue.shown_bits(catalogue.describe(each))
        yield f"| {link} | [{family}]({family}.md) | {bits} | {each.feedback} | {summary(type(each))} |"


def of_family(family: str) -> Iterator[Compressor]:
    """The methods of a family, those of the first tier first."""
    mine = [each for each in compressors() if registry.family("compressors", each.name) == family]
    return iter(sorted(mine, key=lambda each: registry.tier("compressors", each.name)))


def methods_costs(family: str) -> Iterator[str]:
    yield "| method | tier | bits an element | bytes kept | residual | memory | travels by |"
    yield "|---|---|---|---|---|---|---|"
    for each in of_family(family):
        row = catalogue.describe(each)
        cells = [
            f"[`{each.name}`](#{each.name})",
            registry.tier("compressors", each.name),
            catalogue.shown_bits(row),
            catalogue.shown_state(row),
            row["feedback"],
            f"[`{row['memory']}`](memories.md#{row['memory']})",
            ", ".join(f"[`{name}`](strategies.md#{name})" for name in row["aggregation"]),
        ]
        yield f"| {' | '.join(cells)} |"


def methods_declared(family: str) -> Iterator[str]:
    yield "| method | parameters and their defaults | promises | cut at | source |"
    yield "|---|---|---|---|---|"
    for each in of_family(family):
        row = capabilities.properties(each)
        declares = [flag for flag in catalogue.FLAGS if row[flag]] + ([] if row["fixed_size"] else ["variable size"])
        cells = [
            f"[`{each.name}`](#{each.name})",
            parameters(type(each)),
            ", ".join(declares),
            str(each.alignment or "never"),
            row["reference"].replace("|", r"\|"),
        ]
        yield f"| {' | '.join(cells)} |"


COLUMNS = {
    "tier": "first: recommended; second: for comparisons and readers of papers, and never chosen by `auto` "
    "([tiers](index.md#tiers))",
    "bits an element": "size of the message of a 1024 x 1024 matrix at the default parameters, with all scales and "
    'indices; uncompressed it is 32. "~": it depends on the gradient, here 65,536 normal random values',
    "bytes kept": "what a worker stores from step to step for each element: the method's own state and its memory",
    "residual": "whether keeping what was not sent, for later steps, is required, built-in, optional or unsafe "
    "([what these mean](index.md#residual))",
    "memory": "the memory that is chosen for the method",
    "travels by": "the strategy for up to 4 workers, and the one for more workers where it is another",
    "promises": "properties that tests hold the method to ([the list](index.md#promises))",
    "cut at": "a tensor can be cut into shards at multiples of so many elements, which `two_phase` needs",
}
"""The columns of the tables of methods, in plain words."""


def columns() -> Iterator[str]:
    yield "| column | meaning |"
    yield "|---|---|"
    for name, meaning in COLUMNS.items():
        yield f"| *{name}* | {meaning} |"


FAMILIES = sorted({registry.family("compressors", name) for name in registry.places("compressors")})


def memories() -> Iterator[str]:
    yield "| memory | parameters | bytes an element | what it does |"
    yield "|---|---|---|---|"
    for name in registry.names("memory"):
        memory: Memory = registry.build("memory", name)
        nbytes = len(memory.buffers) * memory.form.nbytes(1 << 20) / (1 << 20)
        yield f"| [`{name}`](#{name}) | {parameters(type(memory))} | {nbytes:.3g} | {summary(type(memory))} |"


def strategies() -> Iterator[str]:
    yield "| strategy | parameters | what it does |"
    yield "|---|---|---|"
    for name in registry.names("strategies"):
        cls = registry.find("strategies", name)
        yield f"| [`{name}`](#{name}) | {parameters(cls)} | {summary(cls)} |"


TABLES: dict[tuple[str, str], Callable[[], Iterator[str]]] = {
    ("docs/methods/index.md", "overview"): partial(methods_short, "first"),
    ("docs/methods/index.md", "second tier"): partial(methods_short, "second"),
    ("docs/methods/index.md", "columns"): columns,
    ("docs/methods/memories.md", "memories"): memories,
    ("docs/methods/strategies.md", "strategies"): strategies,
    **{
        (f"docs/methods/{family}.md", marker): rows
        for family in FAMILIES
        for marker, rows in {
            "costs": partial(methods_costs, family),
            "promises": partial(methods_declared, family),
            "columns": columns,
        }.items()
    },
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
