"""A parameter that no rank used keeps no gradient: no decay and no momentum moves it, and what waits for it stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.auto.recorder import LONGEST
from gradwire.testing.processes import run_ranks
from tests.integrations import unused_jobs


def check(results: list[dict[str, Any]], *, waits: bool) -> None:
    assert len({told["digest"] for told in results}) == 1
    for told in results:
        assert told["moved in the pause"] == ["used.weight", "elsewhere.weight"]
        assert told["moved at all"] == ["used.weight", "paused.weight", "elsewhere.weight"]
        assert told["kept"]
        assert (told["waits"] > 0) == waits


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("topk", {"ratio": 0.05}),
        ("none", {}),
        ("twobit", {"threshold": 0.01, "strategy": "two_phase"}),
        ("topk", {"ratio": 0.05, "start_after": 9}),
    ],
)
def test_the_optimizer_of_a_plain_loop_sees_none_for_what_nobody_used(method: str, options: dict[str, Any]) -> None:
    results = run_ranks(2, unused_jobs.plain_loop, method, options)
    check(results, waits=method != "none" and "start_after" not in options)
    for told in results:
        assert told["no gradient"] == [["never.weight", "paused.weight"]] * 2


def _one_bit(rank: int, pause: tuple[int, int]) -> dict[str, Any]:
    return unused_jobs.one_bit(rank, pause, decoupled=True)


def _one_bit_l2(rank: int, pause: tuple[int, int]) -> dict[str, Any]:
    return unused_jobs.one_bit(rank, pause, decoupled=False)


@pytest.mark.parametrize(
    ("job", "pause", "waits"),
    [
        (_one_bit, (2, 3), False),
        (_one_bit, (6, 8), True),
        (_one_bit_l2, (6, 8), True),
        (unused_jobs.zero_one, (1, 2), False),
        (unused_jobs.zero_one, (6, 8), True),
    ],
)
def test_an_adam_of_our_own_leaves_alone_what_nobody_used(
    job: Callable[..., dict[str, Any]], pause: tuple[int, int], *, waits: bool
) -> None:
    check(run_ranks(2, job, pause), waits=waits)


@pytest.mark.parametrize("way", ["DDP", "DDP, plain form", "plain loop"])
@pytest.mark.parametrize(("pause", "left"), [((5, 6), []), ((9, 11), ["paused"])])
def test_what_waits_for_what_nobody_used_outlasts_a_change_of_the_method(
    way: str, pause: tuple[int, int], left: list[str]
) -> None:
    for told in run_ranks(2, unused_jobs.methods_left, way, pause):
        # The outer layers have bfloat16 in place of a method that keeps anything back.
        for name, exact in (("never", True), ("paused", True), ("used", False), ("elsewhere", False)):
            arrived, own = (told[which][f"branches.{name}.weight"] for which in ("arrived", "own"))
            torch.testing.assert_close(arrived, own, rtol=1e-5, atol=1e-6 if exact else 1e-3)
        # The counting of a step ends with the next one; for what is never used nothing waits on any rank.
        assert told["waits"][8] == ["used", "never", "paused", "elsewhere"]
        assert told["waits"][9:] == [left, left, []]


def test_what_waits_for_what_is_never_used_does_not_keep_steps_from_being_ddps() -> None:
    """It is sent if it is used again after all."""
    one, other = run_ranks(2, unused_jobs.never_again)
    assert one["idle"] == other["idle"]
    for told in (one, other):
        assert not any(told["idle"][: LONGEST - 1])
        assert sum(told["idle"][LONGEST + 1 :]) > LONGEST / 2
        assert (told["waited"], told["waits"]) == (True, False)
        torch.testing.assert_close(told["arrived"], told["own"], rtol=1e-5, atol=1e-6)
