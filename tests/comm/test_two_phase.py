"""Shards cut where the code allows, traffic near two payloads, and a residual on both sides."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.group.part import Piece, Unit
from gradwire.group.shards import cut
from gradwire.memory.none import NoMemory
from gradwire.testing.processes import run_ranks
from gradwire.types import Key, Payload, State
from tests.comm.jobs import SHAPES, numel, run_exchange
from tests.contracts.thread_ranks import PLACES, N, exchange_in_threads


def pieces(compressor: str, sizes: list[int]) -> list[Piece]:
    made, lo = [], 0
    for i, size in enumerate(sizes):
        unit = Unit(((f"p{i}", size),), (size,), lo, registry.build("compressors", compressor), NoMemory())
        made.append(Piece(unit, unit.memory, unit.shape, lo))
        lo += size
    return made


@pytest.mark.parametrize("compressor", ["twobit", "onebit", "qsgd", "topk", "fp16"])
@pytest.mark.parametrize("sizes", [[0], [1], [15, 17], [100_003], [513, 5, 4096, 31], [16] * 7])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 64])
def test_shards_cover_everything_once_and_are_cut_where_allowed(compressor: str, sizes: list[int], world: int) -> None:
    shards = cut(pieces(compressor, sizes), world)
    flat = [piece for shard in shards for piece in shard]
    assert [(p.lo, p.lo + p.numel) for p in flat] == sorted((p.lo, p.lo + p.numel) for p in flat)
    assert sum(piece.numel for piece in flat) == sum(sizes)
    for piece in flat:
        step = piece.unit.compressor.alignment
        assert piece.start % step == 0
        assert (piece.start + piece.numel) % step == 0 or piece.start + piece.numel == piece.unit.numel


def test_shards_are_nearly_equal() -> None:
    shards = cut(pieces("twobit", [100_003]), 7)
    counts = [sum(piece.numel for piece in shard) for shard in shards]
    assert max(counts) - min(counts) <= 2 * 16


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_traffic_stays_below_two_payloads_however_many_workers(world: int) -> None:
    n, overhead = numel(SHAPES), 40 * world
    payload = 4 * -(-n // 16)
    for result in run_ranks(world, run_exchange, "twobit", {}, {"strategy": "two_phase"}, {"min_numel": 0}, 1):
        assert result["sent"] < 2 * payload + overhead


def test_methods_that_need_feedback_keep_one_for_the_mean_too() -> None:
    options, policy = {"strategy": "two_phase"}, {"min_numel": 0}
    biased = run_ranks(2, run_exchange, "topk", {"ratio": 0.05}, options, policy, 2)
    unbiased = run_ranks(2, run_exchange, "qsgd", {}, options, policy, 2)
    assert all(result["owned"] for result in biased)
    assert any(float(view.norm()) > 0 for result in biased for views in result["owned"].values() for _, view in views)
    assert not any(result["owned"] for result in unbiased)
    assert torch.isfinite(unbiased[0]["outputs"][1]).all()


KEYS: list[Key] = []


@dataclass(frozen=True)
class Remembers(QSGD):
    """Its keys."""

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        KEYS.append(key)
        super().encode(x, payload, state, key)


def gradient(step: int, rank: int) -> Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(10 * step + rank))


def test_no_two_payloads_are_rounded_by_the_same_random_numbers() -> None:
    """A worker's own part of the mean would be rounded as before, and the mean would not be right on average."""
    KEYS.clear()
    exchange_in_threads(Remembers(bits=4), 2, 2, gradient, strategy="two_phase")
    means = {(key.step, key.rank) for key in KEYS if key.phase == 1}
    assert means == {(step, rank) for step in (1, 2) for rank in (0, 1)}
    assert {key.phase for key in KEYS} == {0, 1}


def test_a_step_that_is_taken_back_leaves_the_state_of_a_tensor_in_two_shards() -> None:
    compressor = TwoBit(threshold="auto")

    def spoilt(step: int, rank: int) -> Tensor:
        grad = gradient(step, rank)
        if step == 3 and rank == 0:
            grad[PLACES["b.weight"].stop - 1] = torch.nan
        return grad

    before, after = (exchange_in_threads(compressor, 2, steps, spoilt, strategy="two_phase") for steps in (3, 4))
    for one, other in zip(before, after, strict=True):
        states, same = one.exchange.residuals.states, other.exchange.residuals.states
        assert states
        assert any(state for state in states.values())
        for name, state in states.items():
            for kind, tensor in state.items():
                assert torch.equal(tensor, same[name][kind]), (name, kind)
