"""Tables written into a page: between its markers, or with markers into a new file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from gradwire._files import replace_text
from gradwire.cli.output import writable
from gradwire.errors import ConfigError

__all__ = ["check_markers", "markdown_option", "write_tables"]

markdown_option = click.option(
    "--markdown",
    "markdown_to",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=writable,
    metavar="FILE",
    help="Write the table to a new FILE, or in a page that has the markers of the table, between them.",
)


def check_markers(path: Path | None, *names: str) -> None:
    """Refuse a page that has none of these markers, before anything is measured for it.

    Args:
        path: path of a page, or of a new file; None: nothing is written.
        names: names of the markers.

    Raises:
        ConfigError: a page that has none of the markers.
    """
    page = path.read_text(encoding="utf-8") if path is not None and path.exists() else ""
    if page.strip() and not any(f"<!-- {name} -->\n" in page for name in names):
        wanted = ", ".join(f"<!-- {name} -->" for name in names)
        raise ConfigError(f"--markdown must name a new file, or a page with the markers {wanted}, got {str(path)!r}")


def write_tables(path: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end of name -->``, where a page has these.

    Args:
        path: path of a page, or of a new file, which gets all markers.
        texts: new texts by the name of their markers, each ending with a line's end.

    Raises:
        ConfigError: a page that has none of the markers.
    """
    check_markers(path, *texts)
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    if not page.strip():
        page = "\n".join(f"<!-- {name} -->\n<!-- end of {name} -->\n" for name in texts)
    for name, text in texts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        start = page.find(begin)
        stop = page.find(end, start) if start >= 0 else -1
        if stop >= 0:
            page = page[: start + len(begin)] + text + page[stop:]
    replace_text(path, page)
