"""Figures of "auto": its cells, and its decisions over time."""

import plotly.graph_objects as go
import pytest

from gradwire.errors import ConfigError
from gradwire_lab.report import Results, auto_decisions, auto_speed, auto_verdicts
from gradwire_lab.report._lines import checked_cell
from lab.tests.experiments.test_auto_check import row
from lab.tests.report.made import ENTRIES, bucket, record


def test_a_stretch_lasts_from_one_decision_to_the_next():
    drawn = auto_decisions.figure(ENTRIES, 50)
    stretches = {trace["name"]: (trace["x"], trace["y"]) for trace in drawn["data"]}
    assert stretches["dense"] == ([6, 20, None, 6, 20, None, 20, 50, None], [0, 0, None, 1, 1, None, 1, 1, None])
    assert stretches["qsgd over allgather"] == ([20, 50, None], [0, 0, None])
    assert stretches["not hidden"] == ([1, 6, 20, 50], pytest.approx([0, 200, 20, 20]))
    assert stretches["not hidden, uncompressed"][1] == pytest.approx([0, 200, 200, 200])
    (said, *_) = next(trace["hovertext"] for trace in drawn["data"] if trace["name"].startswith("qsgd"))
    assert "20 ms not hidden, uncompressed 100 ms" in said
    assert "error 0.01 of 0.15" in said
    go.Figure(drawn)


def test_a_run_that_repeats_decisions_has_no_times_to_draw():
    again = [
        {
            "step": 20,
            "phase": "replaying",
            "buckets": [bucket("qsgd over allgather", None, None) | {"dense_exposed": None}],
        }
    ]
    (bar,) = auto_decisions.figure(again, 50)["data"]
    assert (bar["name"], bar["x"]) == ("qsgd over allgather", [20, 50, None])


def test_runs_and_cells_with_decisions_are_drawn_and_no_others():
    runs = [record("none"), record("auto", decisions=ENTRIES, steps=50)]
    cells = [row(0.5) | {"decisions": ENTRIES}, row(0.5, repeat=1)]
    found = [plot.choice for plot in auto_decisions.blocks(Results(runs=runs, cells=cells))]
    assert found == [
        "classification, a_model, 2 workers, loopback, auto, seed 0",
        "m, 2 workers, 1 Gbit/s, repeat 1",
    ]


def test_speed_ups_are_medians_and_say_what_is_beyond_the_budget():
    cells = [row(auto, repeat=place, within=0.5, kept=0.25) for place, auto in enumerate((0.5, 0.4, 2.0))]
    (plot,) = auto_speed.blocks(Results(cells=cells))
    found = {mark.series: mark for mark in auto_speed.marks([(cell, cell["parts"][0]) for cell in cells])}
    assert {name: mark.x for name, mark in found.items()} == {"auto": 2.0, "within": 2.0, "kept": 4.0}
    assert (found["auto"].low, found["auto"].high) == (0.5, 2.5)
    assert [name for name, mark in found.items() if "beyond the budget" in mark.hover] == ["kept"]
    go.Figure(plot.figure)


def test_the_table_says_which_goal_is_missed():
    (table,) = auto_verdicts.blocks(Results(cells=[row(1.0, within=0.5)]))
    (cells,) = table.rows
    told = {head: (cell.text, cell.tone) for head, cell in zip(table.heads, cells, strict=True)}
    assert told["auto / DDP"] == ("1.00", "better")
    assert told["best / auto"] == ("0.50", "worse")
    assert told["verdict"] == ("missed", "worse")
    assert list(auto_verdicts.blocks(Results())) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parts": [{"link": "1gbit"}]}, "parts, each must be an object with link and methods"),
        ({"decisions": [{"step": 1}]}, "buckets of a decision must be a list"),
        ({"decisions": [{"step": 1, "buckets": [{"choice": 3}]}]}, "choice must be a string"),
        ({"workers": "two"}, "workers must be an integer"),
    ],
)
def test_a_cell_that_is_not_whole_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        checked_cell(row(1.0) | change)
    without = {name: value for name, value in row(1.0).items() if name != "allowed"}
    with pytest.raises(ConfigError, match="a cell must have allowed"):
        checked_cell(without)
