"""The momentum of ``dgc`` for what travels dense, between real ranks: carried on, taken back and saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.testing.processes import run_ranks
from tests.cases import together
from tests.memory.dgc_jobs import (
    PLACES,
    WARM,
    N,
    clipped,
    resharded,
    resumed,
    saved,
    skipped,
    steps_of,
    unused,
)
from tests.strategies.jobs import gradient

WORLD, MOMENTUM = 3, 0.9
DENSE = ("small", "left.out")


def mean_of(step: int, world: int = WORLD) -> Tensor:
    return torch.stack([gradient(step, rank, N) for rank in range(world)]).mean(0)


def mean_kept(told: list[Any], step: int, name: str) -> Tensor:
    return torch.stack([rank[step]["momentum"][name] for rank in told]).mean(0)


@together
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("strategy", ["allgather", "two_phase", "oktopk"])
def test_what_travels_dense_has_momentum_and_the_warm_ups_goes_on(strategy: str, world: int) -> None:
    told = run_ranks(world, steps_of, {"strategy": strategy}, 5)
    expected = torch.zeros(N)
    for step in range(5):
        expected = MOMENTUM * expected + mean_of(step, world)
        for name, place in PLACES.items():
            if name in DENSE or step < WARM:
                for rank in told:
                    torch.testing.assert_close(rank[step]["out"][place], expected[place], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(rank[4]["out"], told[0][4]["out"]) for rank in told)
    if strategy != "two_phase":  # Whose owners keep a part of the velocity.
        # The first compressed step grows the velocity by the momentum of the warm-up.
        there = told[0][WARM]["out"][PLACES["a"]] + torch.stack([rank[WARM]["velocity"] for rank in told]).mean(0)
        grown = MOMENTUM * mean_kept(told, WARM - 1, "a") + mean_of(WARM, world)[PLACES["a"]]
        torch.testing.assert_close(there, grown, rtol=1e-4, atol=1e-5)


def ratio(step: float) -> float:
    """At 0.9 the payload would be larger than the tensor, which then travels dense."""
    return 0.1 if 2 <= step < 4 else 0.9


def test_ranks_stay_equal_where_a_schedule_turns_compression_on_and_off() -> None:
    told = run_ranks(WORLD, steps_of, {"policy": {"start_after": 0, "schedule": {"ratio": ratio}}}, 6)
    for step in range(6):
        assert all(torch.equal(rank[step]["out"], told[0][step]["out"]) for rank in told)
        before = mean_kept(told, step - 1, "a") if step else torch.zeros(1320)
        if ratio(step) == 0.9:
            grown = MOMENTUM * before + mean_of(step)[PLACES["a"]]
            torch.testing.assert_close(told[0][step]["out"][PLACES["a"]], grown, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [1, 3])
def test_a_bad_step_leaves_every_momentum_as_it_was(bad: int) -> None:
    for rank in run_ranks(WORLD, steps_of, {}, 5, bad):
        assert not bool(rank[bad]["out"].isfinite().all())
        before, after = rank[bad - 1]["momentum"], rank[bad]["momentum"]
        assert set(before) == set(PLACES)
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert bool(rank[bad + 1]["out"].isfinite().all())


def test_a_step_that_the_optimizer_skips_leaves_the_momentum_of_its_other_buckets() -> None:
    for rank in run_ranks(2, skipped):
        assert torch.equal(rank[2]["velocity"], rank[1]["velocity"])
        for name, tensor in rank[1]["momentum"].items():
            assert torch.equal(rank[2]["momentum"][name], tensor)
            assert not torch.equal(rank[3]["momentum"][name], tensor)


def test_what_no_rank_used_is_not_pushed_on() -> None:
    for rank in run_ranks(2, unused):
        for name in DENSE:
            assert not rank[1]["out"][PLACES[name]].any()
            assert torch.equal(rank[1]["momentum"][name], rank[0]["momentum"][name])
            assert not torch.equal(rank[2]["momentum"][name], rank[1]["momentum"][name])


def test_each_ranks_own_gradient_is_clipped() -> None:
    for rank in run_ranks(2, clipped):
        expected = torch.zeros(N)
        for step, out in enumerate(rank):
            for place in PLACES.values():
                grads = [gradient(step, other, N)[place] for other in range(2)]
                mean = torch.stack([0.25 * grad / grad.norm() for grad in grads]).mean(0)
                expected[place] = 0.5 * expected[place] + mean
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_is_the_unbroken_one() -> None:
    assert all(run_ranks(2, resumed))


def test_on_another_number_of_ranks_the_mean_momentum_is_kept() -> None:
    states = run_ranks(3, saved)
    for kept in run_ranks(2, resharded, states):
        for name in PLACES:
            of_all = [state["ranks"][str(rank)]["worker"]["momentum"][name] for rank, state in enumerate(states)]
            torch.testing.assert_close(kept[name], torch.stack(of_all).mean(0))
