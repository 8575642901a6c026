"""The latency of every method as violins, on one interactive page: the survey's Figure 8, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwire.bench import report
from gradwire.errors import ConfigError

__all__ = ["write_violins"]


def write_violins(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the part of a report that rows of the codec fill: violins for each size, and break-even bandwidths.

    Args:
        rows: of ``gradwire.bench.codec.rows``, with their samples.
        path: of an HTML file that needs nothing else, no network either.

    Raises:
        ConfigError: Plotly is not installed, or nothing was measured.

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021,
        Figure 8.
    """
    results = report.Results(codecs=rows)
    if not report.sections(results, ["latency"]):
        raise ConfigError("nothing to plot: every row was skipped")
    report.write(path, results, report.sections(results), "gradwire: latency of the codecs")
