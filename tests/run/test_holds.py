"""Models that are held, on real ranks and a link with a clock of its own."""

from __future__ import annotations

import math

import pytest

from gradwire.auto.recorder import LONGEST
from gradwire.testing.processes import run_ranks
from tests.run import jobs


def test_watching_a_slow_link_proposes_and_switches_nothing() -> None:
    for found in run_ranks(2, jobs.proposed):
        proposal, decided = found["facts"]["proposal"], found["facts"]["decisions"]
        assert found["known"]
        assert proposal["seconds"] < 0.7 * proposal["alone"]["dense"]
        assert decided["decisions"] == []
        assert not found["assigned"]
        assert found["sent"] == 0
        # Nothing is to be decided any more, so it looks ever more rarely.
        assert found["window"] == LONGEST


def test_what_is_compressed_is_as_wrong_as_expected() -> None:
    one, other = run_ranks(2, jobs.compressed, False)
    assert one["digest"] == other["digest"]
    assert len(one["checks"]) > 20
    assert one["checks"] == other["checks"]
    assert len({each["bucket"] for each in one["checks"]}) > 1
    for each in one["checks"]:
        assert each["kept"]
        assert 0.3 < each["error"] / each["expected"] < 2
        assert each["cosine"] == pytest.approx(1 / math.sqrt(1 + each["error"] ** 2), abs=0.05)
    before, after = one["figures"]
    assert after["steps"] >= 40
    assert after["step_bytes_sent"] < 0.6 * before["step_bytes_sent"]


def test_a_bucket_that_is_more_wrong_than_expected_goes_back_to_dense_on_all_ranks() -> None:
    one, other = run_ranks(2, jobs.compressed, True)
    assert one["digest"] == other["digest"]
    assert one["checks"] == other["checks"]
    assert [each["bucket"] for each in one["checks"] if not each["kept"]] == [one["spoilt"][0]]
    assert set(one["assigned"]).isdisjoint(one["spoilt"])
    assert one["assigned"]


def test_where_no_bucket_may_be_compressed_any_more_it_watches_again() -> None:
    one, other = run_ranks(2, jobs.all_barred)
    assert one["digest"] == other["digest"]
    for found in (one, other):
        assert (found["phase"], found["left"]) == ("watching", {})


def test_the_share_of_weights_is_one_of_bytes() -> None:
    """They are gathered twice, in 16 bits where gradients stay in 32."""
    assert run_ranks(2, jobs.shares_of_weights) == [[pytest.approx(2 / 3), pytest.approx(1 / 2)]] * 2


def test_the_gradients_of_a_sharded_model_are_checked_too() -> None:
    one, other = run_ranks(2, jobs.sharded)
    assert one["decisions"]
    assert one["checks"] == other["checks"]
    assert len(one["checks"]) > 5
    for each in one["checks"]:
        assert 0.3 < each["error"] / each["expected"] < 2
