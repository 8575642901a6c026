"""Reports of measurements: a page with everything in it, figures as files, tables for the docs and a terminal.

The folder is the list: ``gradwire_lab/report/<name>.py`` is a section. It defines ``TITLE`` and ``NOTE``, what stands
above its blocks; ``PLACE``, by which sections are ordered; and ``blocks(results)``, plots or tables, each with a name
for the section's menu, and none where nothing of its kind was measured. Files that start with an underscore hold what
several share. Preparation and drawing end in plain data: Plotly is loaded to write a page or a file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError
from gradwire.registry import names_in
from gradwire_lab.folders import load
from gradwire_lab.report._headline import headline
from gradwire_lab.report._images import images
from gradwire_lab.report._look import Plot
from gradwire_lab.report._markdown import markdown
from gradwire_lab.report._page import write
from gradwire_lab.report._results import Results, read
from gradwire_lab.report._table import Table
from gradwire_lab.report._where import facts, warnings

__all__ = [
    "Plot",
    "Results",
    "Section",
    "Table",
    "facts",
    "headline",
    "images",
    "markdown",
    "names",
    "read",
    "sections",
    "warnings",
    "write",
    "write_violins",
]


@dataclass(frozen=True)
class Section:
    """A figure or a kind of table, with a block for each of several choices.

    Args:
        name: name of the section's file.
        title: title above the section.
        note: explanation below the title: how to read it.
        blocks: blocks of the section, at least one.
    """

    name: str
    title: str
    note: str
    blocks: Sequence[Plot | Table]


def names() -> tuple[str, ...]:
    """The names of all sections.

    >>> "latency" in names()
    True
    """
    return names_in(__path__)


def sections(results: Results, wanted: Iterable[str] | None = None) -> list[Section]:
    """The sections that have anything to show, in the order of the page.

    Args:
        results: results that were measured.
        wanted: some of ``names()``; None: all of them.
    """
    found = [load(__name__, "section", name, names()) for name in wanted or names()]
    made = [
        Section(module.__name__.rpartition(".")[2], module.TITLE, module.NOTE, tuple(module.blocks(results)))
        for module in sorted(found, key=lambda module: module.PLACE)
    ]
    return [section for section in made if section.blocks]


def write_violins(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the part of a report that rows of the codec fill: violins for each size, and break-even bandwidths.

    Args:
        rows: rows of ``gradwire_lab.bench.codec.rows``, with their samples.
        path: path of an HTML file that needs nothing else, no network either.

    Raises:
        ConfigError: nothing was measured.

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021,
        Figure 8.
    """
    results = Results(codecs=rows)
    if not sections(results, ["latency"]):
        raise ConfigError("nothing to plot: every row was skipped")
    write(path, results, sections(results), "gradwire: latency of the codecs")
