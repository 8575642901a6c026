"""The page of a report: one file with all figures, tables and scripts, which loads nothing.

Law: whatever comes from a file of results is text. It is escaped where it stands in HTML, and in the JSON of a plot no
"<" is left that could end its script.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from gradwire._files import replace_text
from gradwire.errors import ConfigError
from gradwire_lab.report._results import Results
from gradwire_lab.report._where import facts, warnings

__all__ = ["render", "write"]

_TEMPLATES = {"light": "plotly_white", "dark": "plotly_dark"}
_CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


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
    # Here and below, because Plotly takes as long to load as torch.
    from plotly.offline import get_plotlyjs

    environment = Environment(autoescape=True, trim_blocks=False)
    environment.filters["figure_json"] = lambda figure: Markup(_json(figure))
    environment.filters["breakable"] = lambda text: Markup(_breakable(str(escape(text))))
    return str(
        environment.from_string(_file("page.html")).render(
            title=title,
            facts=facts(results),
            warnings=warnings(results),
            sections=sections,
            style=Markup(_file("page.css")),
            script=Markup(_file("page.js")),
            templates=_templates(),
            plotly=Markup(get_plotlyjs()),
        )
    )


def _json(figure: Any) -> str:
    """Encode a figure for a script of type application/json; a value that is not finite becomes null."""
    from plotly.io.json import to_json_plotly

    text: str = to_json_plotly(figure)
    return text.replace("<", r"\u003c")


def _breakable(escaped: str) -> str:
    """Let a name wrap after an underscore or a sign between parameters, and nowhere inside a word."""
    return re.sub(r"(?<=[_:,=])(?=\w)", "<wbr>", escaped)


def _templates() -> dict[str, Any]:
    from plotly.io import templates

    found = {name: templates[template].to_plotly_json() for name, template in _TEMPLATES.items()}
    return {name: {**template, "layout": {**template["layout"], **_CLEAR}} for name, template in found.items()}


def _file(name: str) -> str:
    return files("gradwire_lab.report").joinpath(name).read_text(encoding="utf-8")
