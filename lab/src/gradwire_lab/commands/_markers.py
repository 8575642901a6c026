"""Tables written into a page: between its markers, or else into a file of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click

from gradwire._files import replace_text

__all__ = ["markdown_option", "write_all", "write_between"]

markdown_option = click.option(
    "--markdown",
    "markdown_to",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write the table to FILE; in a page that has the markers of the table, between them.",
)


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end of name -->``; without these, the whole file.

    Args:
        path: path of a page, or of a file that is made.
        name: name of the markers.
        text: ends with a line's end.
    """
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(rf"(<!-- {re.escape(name)} -->\n)(.*?)(<!-- end of {re.escape(name)} -->)", page, re.DOTALL)
    replace_text(path, page[: found.end(1)] + text + page[found.start(3) :] if found else text)


def write_all(path: Path, texts: Mapping[str, str]) -> None:
    """Write several texts as ``write_between`` does; texts whose markers a page lacks are left out if it has others.

    Args:
        path: path of a page, or of a file that is made.
        texts: new texts by the name of their markers.
    """
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    marked = [name for name in texts if f"<!-- {name} -->" in page]
    for name in marked:
        write_between(path, name, texts[name])
    if not marked:
        replace_text(path, "\n".join(texts.values()))
