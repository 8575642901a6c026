"""The page of the times of workers: a row for each worker, and below it the rate of its link."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from gradwire_lab.netlab.worker_times import Interval

__all__ = ["page_of_times"]

SHOWN = 8
"""Workers that are drawn: a page of all of a large lab could not be read."""

PARTS = (
    ("computed", "computes", "#3f7fd0"),
    ("ready", "is ready, and has no processor", "#c98f0a"),
    ("waited", "waits", "#c9ced4"),
)
LINK = (("sent", "sends", "#d9622b"), ("received", "receives", "#179a72"))


def page_of_times(workers: Sequence[Sequence[Interval]], title: str) -> str:
    """Make a page that needs nothing else.

    Args:
        workers: intervals of each worker, in the order of ranks.
        title: title of the page.
    """
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    drawn = workers[:SHOWN]
    names = chain.from_iterable((f"worker {rank}", "its link, Mbit/s") for rank in range(len(drawn)))
    rows = 2 * len(drawn)
    figure = make_subplots(rows, 1, shared_xaxes=True, subplot_titles=list(names), vertical_spacing=0.25 / rows)
    for rank, intervals in enumerate(drawn):
        # An interval is drawn from its beginning, so the last one needs a point at its end.
        x = [each.end - each.seconds for each in intervals] + [each.end for each in intervals[-1:]]
        shown = [*intervals, *intervals[-1:]]
        above, below = {"row": 2 * rank + 1, "col": 1}, {"row": 2 * rank + 2, "col": 1}
        common = {"x": x, "mode": "lines", "showlegend": rank == 0}
        for part, name, colour in PARTS:
            area = {"line": {"width": 0, "shape": "hv"}, "fillcolor": colour, "stackgroup": str(rank)}
            share = [getattr(each, part) / each.seconds for each in shown]
            told = {"name": name, "legendgroup": name, "hovertemplate": "%{y:.0%}"}
            figure.add_trace(graph_objects.Scatter(y=share, **common, **told, **area), **above)
        for part, name, colour in LINK:
            rate = [8e-6 * getattr(each, part) / each.seconds for each in shown]
            line = {"color": colour, "width": 1, "shape": "hv"}
            figure.add_trace(graph_objects.Scatter(y=rate, **common, name=name, legendgroup=name, line=line), **below)
        figure.update_yaxes(range=[0, 1], tickformat=".0%", **above)
        figure.update_yaxes(rangemode="tozero", **below)
    if len(workers) > SHOWN:
        title = f"{title}: the first {SHOWN} of {len(workers)} workers"
    figure.update_xaxes(title_text="seconds", row=rows, col=1)
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.02}
    figure.update_layout(title=title, height=160 + 300 * len(drawn), template="plotly_white", legend=legend)
    return str(figure.to_html(include_plotlyjs=True, full_html=True))
