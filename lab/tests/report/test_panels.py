"""Runs in groups, and which differences are none."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradwire_lab.bench.statistics import Spread, noise_floor, spread
from gradwire_lab.report._panels import panels
from lab.tests.report.made import record, seeds


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


def test_a_difference_within_the_spread_of_the_methods_own_seeds_is_none():
    """The means are eleven points apart, and the method's seeds as far from each other."""
    runs = [*seeds("none", 0.986, 0.988, 0.99), *seeds("topk", 0.95, 0.87, 0.81), *seeds("qsgd", 0.876, 0.8761)]
    panel, entries = only(runs)
    assert abs(panel.difference(entries["topk"])) > 10 * panel.floor(entries["topk"])
    assert panel.verdict(entries["topk"]) == "within noise"
    assert panel.verdict(entries["qsgd"]) == "worse"
    assert panel.limit(entries["qsgd"]) == panel.floor(entries["qsgd"]) < panel.limit(entries["topk"])
    _, one = only([*runs, record("dgc", 0.87)])
    assert panel.verdict(one["dgc"]) == "worse"


def test_seeds_that_ended_alike_are_no_floor_of_zero():
    panel, entries = only([*seeds("none", 0.7, 0.7, 0.7), *seeds("topk", 0.70278, 0.71, 0.7)])
    assert panel.floor() is None
    assert panel.verdict(entries["topk"]) == "noise not known"


def test_a_method_is_compared_with_its_own_recipe_or_else_with_the_tasks():
    fast = {"lr": 0.5}
    runs = [*seeds("none", 0.5, 0.51, recipe=fast), *seeds("topk", 0.52, 0.5, recipe=fast)]
    runs += [*seeds("none", 0.9, 0.91), *seeds("qsgd", 0.91, 0.9), *seeds("dgc", 0.9, 0.91, recipe={"momentum": 0.0})]
    panel, entries = only(runs)
    assert [entry.method for entry in panel.entries][:2] == ["none #2", "none"]
    assert panel.baseline is entries["none #2"] is panel.compared_with(entries["qsgd"])
    assert panel.compared_with(entries["topk"]) is entries["none"]
    assert panel.compared_with(entries["dgc"]) is entries["none #2"]
    assert {name: panel.verdict(entry) for name, entry in entries.items()} == {
        "none": "baseline",
        "none #2": "baseline",
        "topk": "within noise",
        "qsgd": "within noise",
        "dgc": "within noise",
    }


def test_a_method_that_was_tuned_stands_at_the_rate_that_was_best_on_the_first_seed():
    def at(rate, *qualities, method="none"):
        return seeds(method, *qualities, recipe={"lr": rate}, tuned=True, higher_is_better=False)

    runs = [*at(0.1, 2.0), *at(0.2, 1.5, 1.6, 1.55), *at(0.4, math.nan)]
    runs += [*at(0.1, 1.4, 1.9, 1.8, method="topk"), *at(0.2, 1.7, method="topk")]
    panel, entries = only(runs)
    assert set(entries) == {"none, lr 0.2", "topk, lr 0.1"}
    tuned, topk = entries["none, lr 0.2"], entries["topk, lr 0.1"]
    assert (tuned.quality.mean, topk.quality.mean) == pytest.approx((1.55, 1.7))
    assert panel.baseline is tuned
    assert panel.compared_with(topk) is tuned
    assert panel.difference(topk) == pytest.approx(0.15)


def test_a_run_from_before_its_suite_had_several_rates_is_one_of_those_that_were_tried():
    def at(rate, *qualities, tuned=True):
        return seeds("topk", *qualities, recipe={"lr": rate}, tuned=tuned)

    _, entries = only([*at(0.1, 0.8, 0.81, tuned=False), *at(0.05, 0.6), *at(0.2, 0.7), *seeds("topk", 0.9)])
    assert {name: len(entry.runs) for name, entry in entries.items()} == {"topk, lr 0.1": 2, "topk #2": 1}
    assert entries["topk, lr 0.1"].tuned
    # Other settings make it another method.
    _, entries = only([*at(0.2, 0.7), *seeds("topk", 0.8, recipe={"lr": 0.1, "momentum": 0.0})])
    assert {entry.tuned for entry in entries.values()} == {True, False}


def test_of_rates_that_ended_alike_a_tuned_method_stands_at_the_one_with_runs_of_all_seeds():
    def at(rate, *qualities):
        return seeds("topk", *qualities, recipe={"lr": rate}, tuned=True)

    _, entries = only([*at(0.2, 0.5), *at(0.1, 0.5, 0.6)])
    assert {name: len(entry.runs) for name, entry in entries.items()} == {"topk, lr 0.1": 2}


def test_without_an_uncompressed_run_of_a_recipe_that_fits_there_is_no_verdict():
    panel, entries = only([*seeds("none", 0.5, 0.51, recipe={"lr": 0.5}), *seeds("topk", 0.9, 0.91)])
    assert panel.verdict(entries["topk"]) == "nothing to compare with"
    assert panel.relative_speed(entries["topk"]) is panel.difference(entries["topk"]) is None


def test_runs_on_other_data_of_the_same_name_are_in_another_panel():
    one, other = record(), record("topk")
    moved = dataclasses.replace(other, settings=dataclasses.replace(other.settings, data_digest="0123456789abcdef"))
    titles = [panel.title for panel in panels([one, moved])]
    assert titles == [
        "classification: a_model on some data, 2 workers, 1 epoch",
        "classification: a_model on some data 01234567, 2 workers, 1 epoch",
    ]


def test_runs_that_began_with_other_parameters_are_in_another_panel():
    one, other = record(), record("topk")
    begun = dataclasses.replace(other, settings=dataclasses.replace(other.settings, start="0123456789abcdef"))
    titles = [panel.title for panel in panels([one, begun])]
    assert titles == [
        "classification: a_model on some data, 2 workers, 1 epoch",
        "classification: a_model from 01234567 on some data, 2 workers, 1 epoch",
    ]


def test_losses_are_shown_with_three_digits_and_perplexities_with_two():
    (losses,) = panels([record(quality=1.52348, higher_is_better=False)])
    assert (losses.shown(1.52348), losses.shown(-0.0042, signed=True)) == ("1.523", "-0.004")
    (perplexities,) = panels([record(quality=18.812, higher_is_better=False)])
    assert perplexities.shown(9.5261) == "9.53"


def test_the_growth_of_memory_is_known_where_every_run_says_what_it_began_with():
    _, entries = only([*seeds("none", 0.9, 0.8), record("topk"), record("topk", seed=1, start_rss_bytes=None)])
    assert entries["none"].growth == 4 * 10**7
    assert entries["topk"].growth is None


def test_one_seed_says_nothing_about_noise():
    panel, entries = only([record(quality=0.9), *seeds("topk", 0.1, 0.1)])
    assert panel.floor() is None
    assert panel.verdict(entries["topk"]) == "noise not known"


@pytest.mark.parametrize("quality", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("higher", [True, False])
def test_what_diverged_is_said_to_have_and_is_never_better(quality, higher):
    runs = [*seeds("none", 0.9, 0.91, higher_is_better=higher), record("topk", quality, higher_is_better=higher)]
    panel, entries = only([*runs, *seeds("qsgd", 0.9, quality, 0.9, higher_is_better=higher)])
    assert panel.verdict(entries["topk"]) == panel.verdict(entries["qsgd"]) == "diverged"
    assert panel.shown(entries["qsgd"].quality.mean) == "diverged"
    assert panel.difference(entries["topk"]) is None


def test_one_diverged_run_does_not_change_the_unit_of_the_others():
    panel, _ = only([*seeds("none", 0.9, 0.91), record("topk", math.nan)])
    assert panel.unit == "top-1, %"


def test_an_uncompressed_run_that_diverged_judges_nothing():
    panel, entries = only([*seeds("none", 0.9, math.nan, 0.91), *seeds("topk", 0.5, 0.6)])
    assert panel.verdict(entries["none"]) == "diverged"
    assert panel.verdict(entries["topk"]) == "noise not known"
    assert panel.difference(entries["topk"]) is None


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


@pytest.mark.parametrize("other", [{"parallel": "fsdp2"}, {"parallel": "fsdp2", "weights": "blockwise8"}])
def test_runs_that_are_distributed_otherwise_have_a_mean_of_their_own(other):
    sharded = seeds("bf16", 0.7, 0.7, parallel="fsdp2")
    runs = [*seeds("topk", 0.5, 0.5), *seeds("topk", 0.7, 0.7, **other), *sharded]
    _, entries = only([*runs, *seeds("bf16", 0.1, 0.1, parallel="fsdp2", weights="blockwise8")])
    found = {name: entry.quality.mean for name, entry in entries.items()}
    assert found == pytest.approx({"topk": 0.5, "topk #2": 0.7, "bf16": 0.7, "bf16 #2": 0.1})


def test_runs_with_smaller_weights_are_no_baseline():
    smaller = seeds("none", 0.1, 0.2, parallel="fsdp2", weights="blockwise8")
    sharded = [*seeds("none", 0.8, 0.81, parallel="fsdp2"), record("topk", 0.8, parallel="fsdp2")]
    panel, entries = only([*smaller, *sharded])
    assert panel.baselines == (entries["none #2"],)
    assert panel.compared_with(entries["topk"]) is entries["none #2"]
    assert panel.verdict(entries["none"]) == "worse"


def test_a_method_is_compared_with_runs_that_are_distributed_in_the_same_way():
    fast = {"lr": 0.5}
    runs = [*seeds("none", 0.9, 0.91), *seeds("none", 0.5, 0.51, parallel="fsdp2")]
    runs += [*seeds("topk", 0.9, 0.91), *seeds("qsgd", 0.5, 0.51, parallel="fsdp2", recipe=fast)]
    panel, entries = only(runs)
    assert panel.baselines == (entries["none"], entries["none #2"])
    assert panel.compared_with(entries["topk"]) is entries["none"]
    # The recipe may be the task's own, the way to distribute the model may not be another.
    assert panel.compared_with(entries["qsgd"]) is entries["none #2"]
    assert [panel.verdict(entries[name]) for name in ("topk", "qsgd")] == ["within noise", "within noise"]


def test_runs_under_ddp_are_no_baseline_of_sharded_ones():
    panel, entries = only([*seeds("none", 0.9, 0.91), *seeds("topk", 0.5, 0.51, parallel="fsdp2")])
    assert panel.compared_with(entries["topk"]) is None
    assert panel.verdict(entries["topk"]) == "nothing to compare with"


def test_a_figure_that_a_seed_lacks_has_no_mean():
    _, entries = only([record(seed=0), record(seed=1, bytes_per_step=None)])
    assert entries["none"].mean("bytes_per_step") is None
    assert entries["none"].mean("state_bytes") == 500


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(1, 9))
def test_the_floor_never_falls_with_fewer_runs_of_the_other(qualities, count):
    floors = [noise_floor(spread(qualities), count), noise_floor(spread(qualities), count + 1)]
    if spread(qualities).deviation:
        assert floors[0] >= floors[1] >= 0
    else:
        assert floors == [None, None]
