"""DDP runs that go on from a checkpoint: the same bits, though a fresh model begins with other buckets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.resume_jobs import counted, fails, goes_on, others, units
from tests.once import once

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "twobit": ("twobit", {"threshold": 1e-3, "strategy": "two_phase"}),
    "auto": ("twobit", {"threshold": "auto", "strategy": "two_phase"}),
    "topk": ("topk", {"ratio": 0.05, "strategy": "two_phase"}),
    "qsgd": ("qsgd", {"bits": 4, "memory": "residual", "strategy": "two_phase"}),
    "ef21": ("ef21", {"strategy": "two_phase"}),
    "powersgd": ("powersgd", {"rank": 2}),
    "dense": ("none", {}),
}
"""Three ranks: a ring adds three numbers in an order that depends on where in the bucket they are."""


@once
def gone_on() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(3, goes_on, CASES)


@pytest.mark.parametrize("case", CASES)
def test_it_goes_on_bit_for_bit_in_the_buckets_of_the_run(case: str) -> None:
    for result in gone_on():
        assert result[case]["rebuilt"], "a fresh model had the same buckets, so this test tests nothing"
        assert result[case] == {"weights": True, "kept": True, "rebuilt": True, "buckets": True}


def test_a_step_whose_first_bucket_no_method_takes_is_counted_once() -> None:
    for result in run_ranks(2, counted):
        assert result == {"counts": ([6, 7, 8, 9], [6, 7, 8, 9]), "same": True}


def test_a_copy_is_of_the_step_it_was_asked_for_and_buckets_may_change(tmp_path) -> None:
    first, *rest = run_ranks(2, others, str(tmp_path / "async"))
    assert first["digest"] == rest[0]["digest"]
    for result in (first, *rest):
        for way in ("static", "changed"):
            assert result[way]["weights"], way
            assert result[way]["kept"], way
        assert result["async"]
        assert result["nested"]
        assert result["resaved"]
        assert result["large"] == 1


def test_an_error_in_the_saved_buckets_is_an_error_of_backward() -> None:
    assert re.search("lost rank 1: the process died, or gave up", run_ranks(2, fails)[0][""])


def test_the_scale_of_what_waits_must_be_known_where_it_is_followed() -> None:
    for result in run_ranks(2, units):
        assert re.search(
            r"ConfigError: scale of the state must be known .*state\['units'\]\['scale'\]", result["unknown"]
        )
        before, after = result["grown"]
        assert before < after < 8 * before
