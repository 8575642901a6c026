"""The gain of training on each link: the figure, and the table of it."""

import plotly.graph_objects as go

from gradwire_lab.report import Results
from gradwire_lab.report._trainings import gains
from gradwire_lab.report.links_speed import blocks
from lab.tests.report.made import record


def trained():
    """One training over two links, and one over the loopback, which is not drawn."""
    runs = [
        record("none", link=link, examples_per_second=speed) for link, speed in (("100mbit", 10.0), ("1gbit", 80.0))
    ]
    runs += [
        record("auto", link=link, examples_per_second=speed) for link, speed in (("100mbit", 35.0), ("1gbit", 84.0))
    ]
    runs += [
        record("torch_bf16", link="100mbit", examples_per_second=19.0, compressor=None),
        record("none"),
        record("topk"),
    ]
    return Results(runs)


def test_a_row_of_the_figure_is_a_link_with_bars_and_curves():
    (plot,) = blocks(trained())
    assert plot.choice == "classification, a_model, 2 workers"
    go.Figure(plot.figure)
    bars = [trace for trace in plot.figure["data"] if trace["type"] == "bar"]
    assert [dict(zip(trace["y"], trace["x"], strict=True)) for trace in bars] == [
        {"none": 10.0, "auto": 35.0, "torch's bf16": 19.0},
        {"none": 80.0, "auto": 84.0},
    ]
    assert bars[0]["text"][bars[0]["y"].index("auto")] == "35, 3.5x"
    curves = [trace for trace in plot.figure["data"] if trace["type"] == "scatter"]
    assert [trace["x"] for trace in curves] == [[2.0, 4.0]] * 5
    colours = {(trace["name"], trace["line"]["color"]) for trace in curves}
    assert len(colours) == len({name for name, _ in colours}) == 3


def test_the_table_has_the_gain_of_each_method():
    head, _, *rows = gains(trained()).splitlines()
    assert head == "| training | link | a step of DDP | auto | torch's bf16 |"
    assert rows == ["| a_model | 100mbit | 10 ms | 3.5x | 1.9x |", "| a_model | 1gbit | 10 ms | 1.1x |  |"]
