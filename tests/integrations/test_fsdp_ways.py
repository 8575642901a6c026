"""The ways in which people train with FSDP: as FSDP does alone where nothing is compressed, and the ranks agree."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_ways_jobs import WAYS, first_form, hybrid, ways
from tests.integrations.newer import NEWER_FSDP
from tests.integrations.test_ways import refused_inside
from tests.once import once

pytestmark = NEWER_FSDP


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(3, ways)


@pytest.mark.parametrize("way", WAYS)
def test_it_trains_as_fsdp_alone(way: str) -> None:
    """Parameters whose rows do not divide are in most of them."""
    results = [result[way] for result in told()]
    for result in results:
        for plain, dense, half in zip(result["None"], result["none"], result["fp16"], strict=True):
            torch.testing.assert_close(dense, plain, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(half, plain, rtol=1e-2, atol=1e-3)
        for mine, first in zip(result["fp16"], results[0]["fp16"], strict=True):
            assert torch.equal(mine, first)


def test_frozen_midway() -> None:
    for result in told():
        assert result["frozen"] == {"weight": True, "kept": True, "moved": True, "sent": True, "trained": True}


def test_branches() -> None:
    for result in told():
        assert re.search(
            r"gradients of a module must have \d+ elements, got \d+: parameters were unused; call "
            r"model\.set_reduce_scatter_unused_params",
            result["branches"]["said"],
        )
        assert result["branches"]["same"]


def test_an_overflow_in_one_micro_batch_of_one_rank() -> None:
    for result in told():
        assert result["scaled"]["skipped"] == [False, False, False, True, False]
        assert result["scaled"]["scales"] == [64.0, 64.0, 128.0, 128.0, 64.0]
        assert result["scaled"]["same"]


def test_gradients_that_are_dropped_are_warned_of_once() -> None:
    for rank, result in enumerate(told()):
        counted = {name: len(said) for name, said in result["dropped"].items()}
        lost = int(rank == 0)
        assert counted == {"used": 0, "accumulated": 0, "frozen": 0, "none": lost, "zero": lost}
    assert "in step 2" in told()[0]["dropped"]["none"][0]
    assert "`model.requires_grad_(False)`" in told()[0]["dropped"]["none"][0]


def test_a_state_inside_a_backward_pass_is_refused() -> None:
    for result in told():
        refused_inside(result["asked"])


REFUSED = {
    "inner": r"model must be the module that was given to fully_shard, .* got .one whose weight, bias it does not",
    "symmetric": r"cannot call set_symm_mem\(\) when all gather comm is custom: WeightGather",
    "meta": r"device of 0\.weight must be one with memory before replicas are made equal",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_be_compressed_as_it_lies_is_refused(case: str) -> None:
    for result in told():
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]


def test_replicas_accumulate_as_fsdps_own_and_are_taken_up_again(tmp_path) -> None:
    for result in run_ranks(4, hybrid, str(tmp_path / "hybrid")):
        assert result["resumed"]
        for plain, dense in zip(result["plain"], result["none"], strict=True):
            torch.testing.assert_close(dense, plain, rtol=1e-5, atol=1e-6)


def test_fsdp1_under_no_sync_and_in_16_bits() -> None:
    first, second = run_ranks(2, first_form)
    refused_inside(first["asked"])
    for name in ("no_sync", "mixed", "original"):
        plain, dense, half = (first[f"{name}/{method}"] for method in (None, "none", "qsgd"))
        close = {"rtol": 1e-5, "atol": 1e-6} if name != "mixed" else {"rtol": 1e-2, "atol": 2e-3}
        torch.testing.assert_close(dense[0], plain[0], **close)
        torch.testing.assert_close(half[0], plain[0], rtol=0.05, atol=5e-3)
        assert dense[1] == half[1] == (2 if name == "no_sync" else 6)
        assert torch.equal(half[0], second[f"{name}/qsgd"][0])
