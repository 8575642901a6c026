"""Exchanges of FSDP2 on a CPU that go on beside the backward pass: the same bits as where each is awaited."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_overlap_jobs import (
    CASES,
    STEPS,
    alone,
    apart,
    late_hosts,
    observed,
    overlapped,
    prefetched,
)
from tests.integrations.newer import NEWER_FSDP
from tests.once import once

pytestmark = NEWER_FSDP


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, overlapped)


@pytest.mark.parametrize("case", CASES)
def test_gradients_that_arrive_later_have_the_same_bits(case: str) -> None:
    for result in told():
        (later, begun), (awaited, none) = result[case][False], result[case][True]
        assert all(torch.equal(*pair) for pair in zip(later, awaited, strict=True))
        # All four layers, compressed or not, in each step but the one that adds to gradients that are there; that is
        # the second, after which a controller, which compares steps, awaits all.
        steps = 1 if case.startswith("auto") else STEPS - 1
        assert (begun, none) == (4 * steps, 0)


def test_a_reduction_at_the_very_end_is_awaited() -> None:
    for result in told():
        assert result["single"] == {"begun": 1, "under way": 0}


def test_a_backward_pass_that_fails_leaves_nothing_under_way() -> None:
    for result in told():
        assert result["failed"]["said"] == "ArithmeticError: this step is lost"
        assert result["failed"]["under way"] == 1
        assert result["failed"]["same"]


def test_nothing_is_under_way_when_a_state_is_loaded_or_the_method_changes() -> None:
    for result in told():
        assert result["failed"]["left"] == [0, 0]


def test_modules_that_are_gathered_ahead_have_the_same_bits() -> None:
    """FSDP asks for weights in another order then, and for several modules at a time."""
    for result in run_ranks(2, prefetched):
        for case, (plain, *ahead) in result.items():
            assert all(torch.equal(*pair) for other in ahead for pair in zip(plain, other, strict=True)), case


def test_weights_in_inference_mode() -> None:
    for result in told():
        assert result["watched"]["same"]
        assert 0 < result["watched"]["off"] < 0.02


def test_who_is_left_alone_hears_of_it_in_the_pass() -> None:
    heard, _ = run_ranks(2, alone)
    for said in heard:
        assert re.search("GroupError: .*(waited timeout=2 s for rank 1|lost rank 1)", said), said


@pytest.mark.parametrize("compressor", ["auto", "blockwise8"])
def test_one_rank_that_waits_for_its_gradients_meets_another_that_does_not(compressor: str) -> None:
    for watched, free in run_ranks(2, observed, compressor):
        assert all(torch.equal(*pair) for pair in zip(watched, free, strict=True))


def test_ranks_tell_each_other_their_hosts_while_nothing_is_under_way() -> None:
    (under_way, *weights), *others = run_ranks(4, late_hosts)
    assert under_way.tolist() == [0]
    for _, *same in others:
        assert all(torch.equal(*pair) for pair in zip(weights, same, strict=True))


def test_a_group_of_another_backend_reduces_by_itself_while_its_caller_waits() -> None:
    for result in run_ranks(2, apart):
        told = result["told"]
        assert result["known"] == [True] * (4 * STEPS)
        # The compressed layers alone; a controller, which compares steps, awaits those as well.
        assert {case: begun for case, (begun, *_) in told.items()} == {
            "auto, watching": 0,
            "blockwise8": 4 * (STEPS - 1),
            "some": 3 * (STEPS - 1),
        }
        for _, weights, wanted in told.values():
            assert all(torch.equal(*pair) for pair in zip(weights, wanted, strict=True))
