"""Gradients that no method takes travel as torch sends them, and whoever reduces says which parameters there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations import uncompressed_jobs as jobs
from tests.once import once

KINDS = {"double": "float64", "complex": "complex64", "sparse": "sparse"}


@once
def of_ranks() -> list[dict[str, Any]]:
    return run_ranks(2, _all)


def _all(rank: int) -> dict[str, Any]:
    told: dict[str, Any] = {"ignored": jobs.ignored(rank)}
    for kind in KINDS:
        told |= {(kind, method): jobs.train_ddp(rank, kind, method) for method in ("qsgd", "none")}
        told[kind, "loop"] = jobs.train_loop(rank, kind, "qsgd")
        if kind != "complex":  # Torch's scaler does not know complex gradients.
            told[kind, "bad"] = jobs.not_finite(rank, kind)
    told["auto"] = jobs.train_ddp(rank, "sparse", "auto", 12)
    told["excluded"] = jobs.train_ddp(rank, "double", "qsgd", exclude=["other"])
    told["auto bad"] = jobs.auto_not_finite(rank)
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_under_ddp_they_get_the_mean_that_plain_ddp_gives(kind: str) -> None:
    for rank in of_ranks():
        for method in ("qsgd", "none"):
            told = rank[kind, method]
            assert told["alike"]
            assert told["exact"]
            figures = told["figures"]
            assert figures["steps"] == 4
            # What is compressed is compressed, and what is not counts as what it is.
            assert (figures["bytes_sent"] < figures["dense_bytes"]) == (method == "qsgd")
            assert (figures["dense_bytes"] < told["bytes"]) == (kind == "sparse")
            assert kind == "sparse" or figures["dense_bytes"] == told["bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_says_which_they_are_and_their_share(kind: str) -> None:
    first, other = (rank[kind, "qsgd"]["said"] for rank in of_ranks())
    assert other == []
    (line,) = first
    assert re.search(rf"gradients that are {KINDS[kind]}, so those of other\.weight travel .*: \d[\d.]* % of", line)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_loop_averages_them_as_they_are(kind: str) -> None:
    for rank in of_ranks():
        told = rank[kind, "loop"]
        assert told["alike"]
        assert told["seen"] == [True] * 4
        assert told["figures"]["bytes_sent"] < told["figures"]["dense_bytes"]


@pytest.mark.parametrize("kind", ["double", "sparse"])
def test_a_value_that_is_not_finite_takes_the_step_back_on_all_ranks(kind: str) -> None:
    for rank in of_ranks():
        told = rank[kind, "bad"]
        before, spoilt, after = told["norms"]
        assert told["alike"]
        assert told["nonfinite"] == 1
        assert spoilt == before != after


def test_auto_leaves_them_alone() -> None:
    for rank in of_ranks():
        assert rank["auto"]["alike"]
        assert rank["auto"]["exact"]
        assert rank["auto bad"]["nonfinite"] == 1


def test_a_module_that_no_method_takes_may_be_excluded_by_its_name() -> None:
    for rank in of_ranks():
        assert rank["excluded"]["alike"]
        assert rank["excluded"]["figures"]["bytes_sent"] < rank["excluded"]["bytes"]


def test_parameters_that_ddp_ignores_are_nobodys() -> None:
    for rank in of_ranks():
        for form, told in rank["ignored"].items():
            assert told["own"], form
            assert told["alike"], form
            assert told["sent"] == told["layer"], form
            assert told["kept"] == ["layer.bias", "layer.weight"], form


def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(tmp_path: Any) -> None:
    assert run_ranks(2, jobs.resume, str(tmp_path)) == [{"same": True, "alike": True}] * 2


@once
def of_shards() -> list[dict[Any, Any]]:
    return run_ranks(2, _shards)


def _shards(rank: int) -> dict[Any, Any]:
    forms = [("double", "fsdp2"), ("complex", "fsdp2"), ("double", "replicas"), ("double", "fsdp1")]
    told: dict[Any, Any] = {form: jobs.sharded(rank, *form, "qsgd") for form in forms}
    told["double", "auto"] = jobs.sharded(rank, "double", "fsdp2", "auto")
    told["bad"] = jobs.sharded_not_finite(rank)
    return told


def test_fsdp_reduces_them_itself() -> None:
    for rank in of_shards():
        for form, told in rank.items():
            if form != "bad":
                assert told["alike"], form
                figures = told["figures"]
                # On Gloo FSDP's own reduce-scatter sends as much as an all-reduce.
                assert figures["dense_bytes"] == told["bytes"], form
                assert form[1] == "auto" or figures["bytes_sent"] < figures["dense_bytes"], form
                assert "other" in told["name"], form


def test_under_fsdp_too_all_ranks_take_a_step_back() -> None:
    for rank in of_shards():
        before, spoilt = rank["bad"]["norms"]
        assert rank["bad"]["nonfinite"] == 1
        assert spoilt == before > 0
