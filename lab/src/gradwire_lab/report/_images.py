"""Plots written as PNG and SVG files, drawn by a browser without a window.

Why:
    The browser that draws the page draws the files, too, so a file shows what the page shows. Kaleido drives it; no
    browser is included or downloaded, so Chrome or Chromium must be installed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradwire.errors import ConfigError
from gradwire_lab.report._look import Plot

__all__ = ["images"]

_WIDTH = 1100
_SCALE = {"png": 2, "svg": 1}


def images(folder: Path, sections: Iterable[Any]) -> list[Path]:
    """Write every plot of the sections into a folder, which is made if need be.

    Returns:
        The files, named after the section, and after the choice where it has several.

    Raises:
        ConfigError: there is no browser that kaleido can drive.
    """
    from kaleido.errors import BrowserFailedError
    from plotly.io import write_images

    plots = [(name, _alone(title, plot)) for section in sections for name, title, plot in _named(section)]
    folder.mkdir(parents=True, exist_ok=True)
    names = [(f"{name}.{form}", figure) for form in _SCALE for name, figure in plots]
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as draft:
            files = [(Path(draft, name), figure) for name, figure in names]
            write_images(
                [figure for _, figure in files],
                [file for file, _ in files],
                width=_WIDTH,
                validate=False,
                height=[figure["layout"]["height"] for _, figure in files],
                scale=[_SCALE[file.suffix.removeprefix(".")] for file, _ in files],
            )
            for file, _ in files:
                file.replace(folder / file.name)
    except (RuntimeError, BrowserFailedError) as error:
        raise ConfigError(
            "files of plots are drawn by Chrome or Chromium, and none could be started: install one, or set "
            f"BROWSER_PATH to it; the page needs none to be written ({str(error).strip().splitlines()[0]})"
        ) from None
    return [folder / name for name, _ in names]


def _named(section: Any) -> Iterable[tuple[str, str, Plot]]:
    """A file name, a title and a figure for each plot of a section."""
    plots = [block for block in section.blocks if isinstance(block, Plot)]
    for plot in plots:
        name = section.name if len(plots) == 1 else f"{section.name}-{_slug(plot.choice)}"
        yield name, f"{section.title}<br><sub>{plot.choice}</sub>", plot


def _alone(title: str, plot: Plot) -> dict[str, Any]:
    """Copy a figure for use on its own: with a title and without buttons."""
    layout = {name: value for name, value in plot.figure["layout"].items() if name != "updatemenus"}
    margin = {**layout["margin"], "t": layout["margin"]["t"] + 50}
    from plotly.io import templates

    template = templates["plotly_white"].to_plotly_json()
    more = {"title": {"text": title, "yref": "container", "y": 1, "yanchor": "top", "pad": {"t": 14}}, "margin": margin}
    return {"data": plot.figure["data"], "layout": layout | more | {"height": plot.height + 50, "template": template}}


def _slug(text: str) -> str:
    """Reduce a name to letters, digits and hyphens.

    >>> _slug("classification: resnet20_small, 2 workers")
    'classification-resnet20-small-2-workers'
    """
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower().replace("^", "-")))
