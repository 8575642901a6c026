"""Runs in groups, and which differences are none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradwire.bench.report._panels import panels
from gradwire.bench.statistics import Spread, noise_floor, spread
from tests.bench.report.made import record, seeds


def only(runs):
    (panel,) = panels(runs)
    return panel, {entry.method: entry for entry in panel.entries}


def test_runs_are_compared_only_with_those_of_equal_task_workers_link_and_epochs():
    others = [record(task="language"), record(workers=4), record(link="1gbit"), record(epochs=9)]
    found = panels([record(), *others, record("topk")])
    methods = {panel.title: [entry.method for entry in panel.entries] for panel in found}
    assert methods.pop("classification: a_model on some data, 2 workers, 1 epoch") == ["none", "topk"]
    assert list(methods.values()) == [["none"]] * 4


def test_failed_runs_are_in_no_mean():
    panel, entries = only([*seeds("none", 0.9, 0.8), record("none", None, 7, status="failed", error="x")])
    assert entries["none"].quality == Spread(pytest.approx(0.85), pytest.approx(math.sqrt(0.005)), 2)
    assert panel.baseline is entries["none"]


def test_the_floor_is_a_t_interval_for_the_difference_of_two_means():
    panel, entries = only([*seeds("none", 0.97, 0.98, 0.99), *seeds("topk", 0.9, 0.9), *seeds("qsgd", 0.99, 1.0, 0.98)])
    expected = stats.t.ppf(0.975, df=2) * 0.01
    assert panel.floor(entries["topk"]) == pytest.approx(expected * math.sqrt(1 / 3 + 1 / 2))
    assert panel.floor() == pytest.approx(expected * math.sqrt(2 / 3))
    assert [panel.verdict(entries[name]) for name in ("none", "topk", "qsgd")] == ["baseline", "worse", "within noise"]
    assert panel.difference(entries["qsgd"]) == pytest.approx(0.01)


def test_two_equal_groups_differ_by_less_than_the_floor_as_often_as_it_says():
    generator = stats.norm(0, 1)
    samples = generator.rvs(size=(4000, 6), random_state=0)
    within = [
        abs(spread(row[:3]).mean - spread(row[3:]).mean) <= noise_floor(spread(row[:3]), 3) for row in samples.tolist()
    ]
    assert sum(within) / len(within) == pytest.approx(0.95, abs=0.012)


def test_where_lower_is_better_a_smaller_value_is():
    runs = [
        *seeds("none", 20.0, 20.1, 20.2, higher_is_better=False),
        *seeds("topk", 10.0, 10.0, higher_is_better=False),
    ]
    panel, entries = only(runs)
    assert panel.verdict(entries["topk"]) == "better"
    assert (panel.scale, panel.unit, panel.shown(18.234)) == (1.0, "top-1", "18.23")


def test_one_seed_says_nothing_about_noise():
    panel, entries = only([record(quality=0.9), *seeds("topk", 0.1, 0.1)])
    assert panel.floor() is None
    assert panel.verdict(entries["topk"]) == "noise not known"


def test_what_diverged_is_worse_and_not_lost():
    panel, entries = only([*seeds("none", 0.9, 0.91), record("topk", math.nan), record("qsgd", None)])
    assert panel.verdict(entries["topk"]) == panel.verdict(entries["qsgd"]) == "worse"
    assert panel.shown(entries["topk"].quality.mean) == "nan"


def test_throughput_is_relative_to_plain_ddp_where_that_ran_and_else_to_none():
    runs = [record(examples_per_second=50.0), record("topk", examples_per_second=100.0)]
    panel, entries = only(runs)
    assert panel.relative_speed(entries["topk"]) == 2.0
    panel, entries = only([*runs, record("ddp", compressor=None, examples_per_second=200.0)])
    assert panel.baseline is entries["ddp"] is panel.entries[0]
    assert panel.relative_speed(entries["topk"]) == 0.5


def test_runs_that_were_made_beside_others_have_no_times():
    _, entries = only([record(), record("topk", environment={"jobs": 4}), record("qsgd", environment={"jobs": 1})])
    assert {name: entry.speed is not None for name, entry in entries.items()} == {
        "none": True,
        "topk": False,
        "qsgd": True,
    }
    assert entries["topk"].step is None


def test_one_label_with_two_configurations_is_two_methods():
    runs = [record("topk", 0.5, options={"min_numel": 1}), record("topk", 0.7, options={"min_numel": 2})]
    _, entries = only(runs)
    assert {name: entry.quality.mean for name, entry in entries.items()} == {"topk": 0.5, "topk #2": 0.7}


def test_a_figure_that_a_seed_lacks_has_no_mean():
    _, entries = only([record(seed=0), record(seed=1, bytes_per_step=None)])
    assert entries["none"].mean("bytes_per_step") is None
    assert entries["none"].mean("state_bytes") == 500


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 9))
def test_the_floor_never_falls_with_fewer_runs_of_the_other(qualities, count):
    floors = [noise_floor(spread(qualities), count), noise_floor(spread(qualities), count + 1)]
    assert floors[0] >= floors[1] >= 0
