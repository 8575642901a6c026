"""Ranks that come apart find out, all of them at once, instead of ending in Gloo or mixing their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.apart_jobs import (
    SHORT,
    alone,
    apart,
    late,
    once_more,
    patient,
    scaled,
    skipping,
    steady,
    swapped,
    unfrozen,
)

CALLS = {"load": "load_state_dict", "change": "change"}


def heard(results: list[tuple[str, str]]) -> str:
    """The errors of all ranks, none of which is that of a timeout."""
    kinds, texts = zip(*results, strict=True)
    assert set(kinds) <= {"GroupError", "RuntimeError"}
    assert "GroupError" in kinds or len(set(kinds)) == 1
    assert len(set(texts)) == 1, texts
    assert "waited timeout" not in texts[0]
    return str(texts[0])


@pytest.fixture(scope="module", autouse=True)
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[list[Any]]]]:
    """The errors of ranks that wait until a deadline has passed: side by side, and while the other tests run."""
    with ThreadPoolExecutor() as threads:
        yield {
            "change": threads.submit(run_ranks, 2, apart, "fsdp", "change", SHORT, end=True),
            "late": threads.submit(run_ranks, 3, late, str(tmp_path_factory.mktemp("late")), end=True),
            "alone": threads.submit(run_ranks, 3, alone),
        }


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("way", ["ddp", "uncompressed", "optimizer", "replicated"])
def test_a_call_that_one_rank_makes_alone_is_named_on_all(way: str, kind: str) -> None:
    told = heard(run_ranks(2, apart, way, kind, end=True))
    sides = f"call is step on rank 0; {CALLS[kind]} on rank 1; every rank must make the same calls in the same order"
    assert told == f"ranks came apart: {sides}"


@pytest.mark.parametrize("way", ["adam", "diloco"])
def test_an_optimizer_that_one_rank_loads_alone_is_named_on_all(way: str) -> None:
    told = heard(run_ranks(2, apart, way, "load", end=True))
    assert told.startswith("ranks came apart: call is step on rank 0; load_state_dict on rank 1;")


@pytest.mark.parametrize("way", ["ddp", "traced", "optimizer", "fsdp", "replicated", "adam", "diloco"])
def test_a_schedule_that_differs_late_is_named_on_all(way: str) -> None:
    told = heard(run_ranks(3, apart, way, "schedule", end=True))
    named = "bits is 4 on ranks 0, 2; 2" if way in ("fsdp", "replicated") else "ratio is 0.01 on ranks 0, 2; 0.05"
    assert told == f"ranks came apart: compressor.{named} on rank 1; a schedule must give the same values on all ranks"


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("compressor", ["none", "topk", "auto"])
def test_buckets_of_one_size_that_hold_other_gradients_on_a_rank_are_not_added_up(
    compressor: str, several: bool
) -> None:
    told = heard(run_ranks(2, swapped, compressor, several, end=True))
    first, other, more = ("second", "first", 0) if several else ("first", "second", 1)
    assert told.startswith(f"ranks came apart: the first bucket is '{first}.weight and {more} more (")
    assert f"on rank 0; '{other}.weight and {more} more (" in told
    assert told.endswith("or gradients of different parameters are added up")


def test_after_coming_apart_nobody_goes_on() -> None:
    for told in run_ranks(2, once_more, end=True):
        assert len(told) == 2
        assert told[0].startswith("GroupError: ranks came apart: call is step on rank 0; change on rank 1")
        assert told[1].startswith("GroupError: an earlier exchange failed: ranks came apart")


def test_a_rank_that_leaves_out_a_step_is_named_on_all() -> None:
    """It drops a gradient without an exchange, in place or with its tensor; the others wait for that exchange."""
    for set_to_none in (True, False):
        told = heard(run_ranks(3, skipping, set_to_none, end=True))
        assert told.startswith(
            "ranks came apart: iteration is 4 on ranks 0, 2; 5 on rank 1; a rank left out an exchange"
        )


@pytest.mark.parametrize("kind", ["accumulation", "uneven", "second order", "clipped", "by hand", "conditional"])
def test_what_all_ranks_exchange_is_no_step_left_out(kind: str) -> None:
    assert run_ranks(2, steady, kind) == [4, 4]


def test_a_scaler_that_the_state_does_not_know_is_refused_before_gradients_are_mixed() -> None:
    """Rank 1 overflows in the first step, so it hears of it in the second."""
    told = run_ranks(2, scaled, None)
    assert [exchanges for _, _, exchanges in told] == [0, 0]
    for kind, text, _ in told:
        assert kind == "ConfigError"
        assert text.startswith("scaler must be that whose step() is called, as scaler= of compress_optimizer")


def test_another_scaler_is_refused_and_the_one_given_or_disabled_is_not() -> None:
    assert [kind for kind, _, _ in run_ranks(2, scaled, "another")] == ["ConfigError"] * 2
    assert run_ranks(2, scaled, "given") == [("nothing", "was raised", 3)] * 2
    assert run_ranks(2, scaled, "disabled") == [("nothing", "was raised", 3)] * 2


def test_what_is_wrong_on_one_rank_before_its_exchange_is_raised_on_all() -> None:
    told = heard(run_ranks(3, unfrozen, end=True))
    assert told.startswith("rank 1 was configured wrongly: ConfigError: optimizer must be over the parameters")


@pytest.mark.parametrize(("given", "expected"), [(None, 37.0), (5.0, 5.0)])
def test_exchanges_wait_as_long_as_the_group_unless_told(given: float | None, expected: float) -> None:
    assert run_ranks(2, patient, given, timeout=37.0) == [expected] * 2


def test_a_call_that_a_rank_makes_alone_while_fsdp_waits_for_it_says_whom_it_waits_for(
    waiting: dict[str, Future[list[Any]]],
) -> None:
    """FSDP's own collectives come first there, so that nobody answers; neither process may end in Gloo."""
    *_, (kind, told) = waiting["change"].result()
    assert kind == "GroupError"
    assert told.startswith("rank 1 of 2 in change waited timeout=10 s for rank 0 and got no answer")


def test_a_rank_that_was_silent_is_named_by_the_others_and_told_so_itself(
    waiting: dict[str, Future[list[Any]]],
) -> None:
    results = waiting["late"].result()
    assert [kind for kind, _ in results] == ["GroupError"] * 3
    for rank in (0, 2):
        assert f"rank {rank} of 3 in step 2 waited timeout=10 s for rank 1 and got no answer" in results[rank][1]
        assert "longer timeout=" in results[rank][1]
    assert "rank 1 of 3 in step 2 came too late: ranks 0, 2 waited timeout=10 s for this rank" in results[1][1]


def test_a_rank_that_sets_up_alone_says_whom_it_waits_for(waiting: dict[str, Future[list[Any]]]) -> None:
    (told, logged), *_ = waiting["alone"].result()
    assert logged == ["set-up has waited 0.5 s for ranks 1, 2: every rank must make the call (docs/troubleshooting.md)"]
    assert told.startswith(
        "ranks 1, 2 did not set up gradwire: ranks [0, 1, 2] did not all set up gradwire within 10 s"
    )
