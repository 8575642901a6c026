"""Logs of other trainers, the loss of every run, and the headline."""

import json
import math

import pytest

from gradwire.errors import ConfigError
from gradwire_lab import report
from gradwire_lab.experiments.records import Point
from gradwire_lab.report import Results
from lab.tests.report.made import record, seeds


def written(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def steps(pace, count=50, **more):
    """The lines of a run whose loss falls as 3 / (1 + step / 10)."""
    return [
        {"step": step, "loss": 3 / (1 + step / 10), "seconds": pace * step, "bytes": 1000.0 * step, **more}
        for step in range(1, count)
    ]


def drawn(results, name):
    """The lines of the first plot of a section: name to x and y."""
    (section,) = report.sections(results, [name])
    return {trace["name"]: (trace["x"], trace["y"]) for trace in section.blocks[0].figure["data"]}


def test_a_trainers_own_lines_are_drawn_over_steps_and_seconds(tmp_path):
    plain = written(tmp_path / "plain.jsonl", *steps(0.5, lr=0.1))
    quick = written(tmp_path / "twobit.jsonl", *steps(0.1))
    results = report.read([plain, quick])
    over_steps, over_seconds = drawn(results, "loss_steps"), drawn(results, "loss_seconds")
    assert over_steps.keys() == over_seconds.keys() == {"plain", "twobit"}
    assert over_steps["plain"][0] == list(range(1, 50))
    assert over_seconds["twobit"][0] == [0.1 * step for step in range(1, 50)]
    assert over_steps["plain"][1] == [line["loss"] for line in steps(1.0)]
    (sentence,) = report.headline(results)
    assert sentence == ("A loss of 0.5085, which all runs reached: twobit after 4.9 s, 5.0 times as fast as plain.")


def test_lines_without_seconds_are_drawn_over_steps_alone(tmp_path):
    lines = [{"step": 1, "loss": 2.0}, {"step": 3, "loss": None}, {"step": 4, "loss": 1.0}]
    results = report.read([written(tmp_path / "log.jsonl", *lines)])
    assert drawn(results, "loss_steps") == {"log": ([1, 3, 4], [2.0, None, 1.0])}
    assert report.sections(results, ["loss_seconds"]) == []
    assert report.headline(results) == []
    report.write(tmp_path / "page.html", results, report.sections(results), "own")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"step": 2}, "line 2: loss must be in each line of a trainer, as step and loss are, got a line without it"),
        ({"loss": 2.0}, "line 2: step must be in each line"),
        ({"step": 2.5, "loss": 1.0}, "line 2: step must be an integer, got 2.5"),
        ({"step": 2, "loss": "low"}, "line 2: loss must be a number, got 'low'"),
        ({"step": 2, "loss": 1.0, "seconds": -1}, "line 2: seconds must be a number >= 0, got -1"),
        ({"step": 2, "loss": 1.0, "bytes": "many"}, "line 2: bytes must be a number >= 0, got 'many'"),
        ({"step": 1, "loss": 1.0}, "line 2: a file is one run, so step must be larger than 1, got 1"),
        ({"epoch": 1}, "line 2: a line must be a run of 'gradwire train', .* or a step of your own trainer with step"),
    ],
)
def test_a_line_that_is_none_is_an_error_with_its_place(tmp_path, line, said):
    path = written(tmp_path / "log.jsonl", {"step": 1, "loss": 2.0}, line)
    with pytest.raises(ConfigError, match=said):
        report.read([path])


def test_the_loss_of_every_run_is_a_line():
    points = [Point(epoch, 10 * epoch, 2.0 * epoch, 3.0 / epoch, 0.5, 0.0) for epoch in (1, 2, 3)]
    runs = [*seeds("none", 0.9, 0.8, history=points), record("topk", history=points)]
    (section,) = report.sections(Results(runs), ["loss_steps"])
    traces = section.blocks[0].figure["data"]
    assert [trace["name"] for trace in traces] == ["none", "none", "topk"]
    assert all(trace["x"] == [10, 20, 30] and trace["y"] == [3.0, 1.5, 1.0] for trace in traces)
    assert len(drawn(Results(runs), "loss_seconds")) == 2


def test_the_headline_says_what_was_gained_where_nothing_was_lost():
    runs = seeds("none", 0.90, 0.91, 0.92, link="100mbit", examples_per_second=100.0)
    runs += seeds("qsgd", 0.91, 0.90, 0.92, link="100mbit", examples_per_second=320.0)
    runs += seeds("topk", 0.10, 0.11, 0.12, link="100mbit", examples_per_second=900.0)
    (sentence,) = report.headline(Results(runs))
    assert sentence.startswith("classification, a_model, 2 workers on 100mbit: qsgd trained 3.2 times as fast as no")
    assert sentence.endswith("91.00, and 91.00 without (within noise).")
    assert report.headline(Results(runs[:3])) == []
    single = [
        runs[0],
        record("bf16", 0.88, link="100mbit", examples_per_second=500.0),
        record("fp16", 0.895, link="100mbit"),
    ]
    assert "no method trained faster" in report.headline(Results(single))[0]
    assert report.headline(Results([record("topk", math.nan)])) == []


def test_logs_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    for name, pace in (("dense", 0.5), ("twobit", 0.1)):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "log.jsonl", *steps(pace))
    results = report.read([tmp_path / "dense" / "log.jsonl", tmp_path / "twobit" / "log.jsonl"])
    names = {str(tmp_path / name / "log") for name in ("dense", "twobit")}
    assert drawn(results, "loss_seconds").keys() == names
