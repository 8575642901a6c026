"""A checkpoint that rank 0 alone has saved."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.one_file_jobs import load, load_elsewhere, load_whole, save, sharded, waiting
from tests.once import once


@once
def saved() -> dict[str, Any]:
    return run_ranks(3, save)[0]


@once
def loaded() -> list[dict[str, Any]]:
    return run_ranks(3, load, saved())


def test_where_nothing_is_kept_every_rank_goes_on_from_it() -> None:
    for told in loaded():
        assert (told["qsgd"]["residual"], told["qsgd"]["said"], told["qsgd"]["steps"]) == (0.0, [], 4)
        assert told["qsgd"]["digest"] == loaded()[0]["qsgd"]["digest"]


def test_where_nothing_is_kept_any_number_of_ranks_goes_on_from_it() -> None:
    one, other = run_ranks(2, load_elsewhere, saved()["qsgd"], saved()["within"])
    assert one[:2] == other[:2]
    assert one[0] == 4
    # Figures are those of the two steps since.
    (now, whole) = re.findall(r"([\d.]+ kB) (?:a step now|in all)", one[2])
    assert float(whole.split()[0]) == pytest.approx(2 * float(now.split()[0]), rel=0.02)
    for told in (one, other):
        assert "saved after synchronize() for another number of ranks, here 2, got one of 3" in told[3]


@pytest.mark.parametrize("method", ["topk", "powersgd", "dgc", "oktopk"])
def test_what_waited_on_other_ranks_is_lost_with_one_warning(method: str) -> None:
    first, *others = [told[method] for told in loaded()]
    assert first["residual"] > 0
    assert [told["residual"] for told in others] == [0.0, 0.0]
    assert {told["digest"] for told in others} == {first["digest"]}
    lines = [text for told in (first, *others) for text in told["said"] if "rank 0 alone" in text]
    # Loaded twice, each time with one warning for all ranks.
    assert len(lines) == 2
    assert all(text.startswith("the state is that of rank 0 alone: what waited on other") for text in lines)


def test_estimates_that_all_ranks_have_alike_are_not_begun_anew_on_some_of_them() -> None:
    for told in loaded():
        assert re.search(r"state must have what rank [12] saved, got that of rank 0", told["ef21"]["error"])


def test_ranks_with_weights_of_their_own_need_their_own_files() -> None:
    for told in loaded():
        assert re.search(
            r"state_dict must be what rank [12] saved itself, because ranks have weights of their own in it: save on "
            r"every rank, or when all are in step \(docs/checkpoints.md\), got that of another rank",
            told["within"]["error"],
        )
        assert told["between"] == {"rounds": 1, "steps": 5}


def test_a_complete_state_of_another_number_of_ranks_is_no_file_of_rank_0_alone() -> None:
    (one,) = run_ranks(1, save)
    assert run_ranks(2, load_whole, one["topk"]) == [[], []]


def test_between_replicas_a_shard_goes_on_from_another_ones_file_where_nothing_is_kept() -> None:
    first = run_ranks(4, sharded, "qsgd")[0]["state"]
    assert [told["steps"] for told in run_ranks(4, sharded, "qsgd", first)] == [2] * 4


def test_between_replicas_a_file_without_a_shard_that_keeps_something_is_refused() -> None:
    first = run_ranks(4, sharded, "topk")[0]["state"]
    errors = [told["error"] for told in run_ranks(4, sharded, "topk", first, False)]
    assert all("parts of the state must be with shard 1: save on every rank" in errors[rank] for rank in (1, 3))


@pytest.mark.parametrize("front", ["ddp", "fsdp"])
def test_all_ranks_go_the_same_way_where_a_residual_waits_on_rank_0_alone(front: str) -> None:
    """Ranks of two minds would wait for each other for ever."""
    saved = run_ranks(2, waiting, front, patience=60.0)[0]["state"]
    told = run_ranks(2, waiting, front, saved, patience=60.0)
    first, other = (each["left"] for each in told)
    assert first == other
    assert {"0.weight", "1.weight"} <= set(first)
    assert [each["now"] for each in told] == [[], []]
    assert sum(len(each["said"]) for each in told) == 1
