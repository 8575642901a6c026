"""The page of a report: one file with all figures, tables and scripts, which loads nothing.

Invariants:
    Whatever comes from a file of results is text and is escaped in HTML. A plot is compressed JSON in base64, from
    which ``figure.js`` makes no markup.

Why:
    Uncompressed, a page of a thousand runs would have megabytes of JSON.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from gradwire._files import replace_text
from gradwire.errors import ConfigError
from gradwire_lab.report._headline import headline
from gradwire_lab.report._results import Results
from gradwire_lab.report._where import facts, warnings

__all__ = ["packed", "render", "write"]


def write(path: Path, results: Results, sections: Any, title: str) -> None:
    """Write a page.

    Args:
        path: path of an HTML file.
        results: results that were measured; they are named above everything.
        sections: sections from ``gradwire_lab.report.sections``.
        title: title of the page.

    Raises:
        ConfigError: there is no section.
    """
    if not sections:
        raise ConfigError("nothing to show: every run failed or was skipped")
    replace_text(path, render(results, sections, title))


def render(results: Results, sections: Any, title: str) -> str:
    """The page as text; arguments as for ``write``."""
    environment = Environment(autoescape=True, trim_blocks=False)
    environment.filters["packed"] = packed
    environment.filters["breakable"] = lambda text: Markup(_breakable(str(escape(text))))
    return str(
        environment.from_string(_file("page.html")).render(
            title=title,
            headline=headline(results),
            facts=facts(results),
            warnings=warnings(results),
            sections=sections,
            style=Markup(_file("page.css")),
            script=Markup(_file("figure.js") + _file("page.js")),
        )
    )


def packed(figure: Any) -> str:
    """Encode a figure for a page: JSON, compressed, as base64; a value that is not finite becomes null."""
    text = json.dumps(_short(figure), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _short(value: Any) -> Any:
    """Round to what a picture shows: a million pixels."""
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _breakable(escaped: str) -> str:
    """Let a name wrap after an underscore or a sign between parameters, and nowhere inside a word."""
    return re.sub(r"(?<=[_:,=])(?=\w)", "<wbr>", escaped)


def _file(name: str) -> str:
    return files("gradwire_lab.report").joinpath(name).read_text(encoding="utf-8")
