"""The page of a report: one file with all figures, tables and scripts, which loads nothing.

Law: whatever comes from a file of results is text. It is escaped where it stands in HTML, and in the JSON of a plot no
"<" is left that could end its script.
"""

from __future__ import annotations

import importlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradwire._extras import install
from gradwire._files import replace_text
from gradwire.errors import ConfigError
from gradwire.report._results import Results
from gradwire.report._where import facts, warnings

__all__ = ["render", "write"]

_TEMPLATES = {"light": "plotly_white", "dark": "plotly_dark"}
_CLEAR = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def write(path: Path, results: Results, sections: Any, title: str) -> None:
    """Write a page.

    Args:
        path: path of an HTML file.
        results: results that were measured; they are named above everything.
        sections: sections from ``gradwire.report.sections``.
        title: title of the page.

    Raises:
        ConfigError: Plotly or Jinja is not installed, or there is no section.
    """
    if not sections:
        raise ConfigError("nothing to show: every run failed or was skipped")
    replace_text(path, render(results, sections, title))


def render(results: Results, sections: Any, title: str) -> str:
    """The page as text; arguments as for ``write``."""
    markup = needed("markupsafe").Markup
    environment = needed("jinja2").Environment(autoescape=True, trim_blocks=False)
    environment.filters["figure_json"] = lambda figure: markup(_json(figure))
    environment.filters["breakable"] = lambda text: markup(_breakable(str(needed("markupsafe").escape(text))))
    return str(
        environment.from_string(_file("page.html")).render(
            title=title,
            facts=facts(results),
            warnings=warnings(results),
            sections=sections,
            style=markup(_file("page.css")),
            script=markup(_file("page.js")),
            templates=_templates(),
            plotly=markup(needed("plotly.offline").get_plotlyjs()),
        )
    )


def needed(module: str) -> Any:
    """Import a module of the extra ``bench``.

    Raises:
        ConfigError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise ConfigError(f"a report needs {package}, which is not installed: {install('bench')}") from None


def _json(figure: Any) -> str:
    """Encode a figure for a script of type application/json; a value that is not finite becomes null."""
    text: str = needed("plotly.io.json").to_json_plotly(figure)
    return text.replace("<", r"\u003c")


def _breakable(escaped: str) -> str:
    """Let a name wrap after an underscore or a sign between parameters, and nowhere inside a word."""
    return re.sub(r"(?<=[_:,=])(?=\w)", "<wbr>", escaped)


def _templates() -> dict[str, Any]:
    known = needed("plotly.io").templates
    found = {name: known[template].to_plotly_json() for name, template in _TEMPLATES.items()}
    return {name: {**template, "layout": {**template["layout"], **_CLEAR}} for name, template in found.items()}


def _file(name: str) -> str:
    return files("gradwire.report").joinpath(name).read_text(encoding="utf-8")
