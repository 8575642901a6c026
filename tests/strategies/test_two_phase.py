"""Shards cut where the code allows, traffic near two payloads, and a residual on both sides."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.compressors.transforms.eden import EDEN
from gradwire.engine.part import Piece, Unit
from gradwire.engine.shards import cut
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import Key, Payload, State
from tests.contracts.thread_ranks import PLACES, N, exchange_in_threads
from tests.strategies.hierarchical_jobs import BUCKETS, Stage, changing, leaving
from tests.strategies.jobs import SHAPES, conserved, numel, run_exchange


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


METHODS = ["onebit", "topk:ratio=0.05", "efsignsgd", "twobit:threshold=0.5"]


def resumptions() -> list[list[Stage]]:
    """Runs that are resumed in other buckets, with another method, or both; and some that are resumed often, by chance
    while what owners keep still waits for its cut.
    """
    pairs = zip(itertools.product(METHODS, METHODS), itertools.cycle(BUCKETS), strict=False)
    cases = [[Stage(a, "two_phase", BUCKETS[0], 1), Stage(b, "two_phase", cut, 4)] for (a, b), cut in pairs]
    dice = random.Random(7)
    for _ in range(8):
        ways = [dice.choice(["two_phase", "two_phase", "allgather"]) for _ in range(4)]
        cases.append([Stage(dice.choice(METHODS), way, dice.choice(BUCKETS), dice.randint(1, 4)) for way in ways])
    return cases


@pytest.mark.parametrize("world", [2, 3])
def test_nothing_is_lost_and_nothing_counts_twice_in_a_run_that_is_resumed(world: int) -> None:
    cases = resumptions()
    for stages, results in zip(cases, zip(*run_ranks(world, changing, cases), strict=True), strict=True):
        arrived, put = conserved(results, sum(stage.steps for stage in stages))
        torch.testing.assert_close(arrived, put, rtol=0, atol=1e-4, msg=lambda told, of=stages: f"{of}: {told}")


@pytest.mark.parametrize("steps", [0, 1])
def test_what_owners_have_kept_is_sent_when_all_methods_are_left_soon_after_a_state_was_loaded(steps: int) -> None:
    results = run_ranks(2, leaving, "onebit", BUCKETS[:2], steps)
    arrived, put = conserved(results, 7 + steps)
    assert not any(result["owned"] or result["residuals"][-1] for result in results)
    torch.testing.assert_close(arrived, put, rtol=0, atol=1e-4)


def apart(step: int, rank: int) -> Tensor:
    """Gradients that have nothing in common, so that a mean is short beside the noise of coarse codes."""
    return torch.randn(N, generator=torch.Generator().manual_seed(1000 * step + rank))


def noise(ranks: int, steps: int, strategy: str) -> float:
    """The squared norm of what an eighth of a bit adds to a mean, over that of a rank's own gradient."""
    found = exchange_in_threads(EDEN(bits=0.125, block=64), ranks, steps, apart, strategy=strategy)
    compressed = torch.cat([torch.arange(N)[PLACES[name]] for name in ("a.weight", "b.weight")])
    added = own = 0.0
    for step in range(steps):
        grads = [rank.steps[step].grad[compressed] for rank in found]
        added += float((found[0].steps[step].out[compressed] - torch.stack(grads).mean(0)).square().sum())
        own += float(torch.stack(grads).square().sum()) / ranks
    return added / own


def test_a_mean_is_encoded_with_more_bits_than_the_gradients_whose_noise_is_averaged() -> None:
    """Encoded in an eighth of a bit again, the mean would have 7.2 times its square and that of its noise added."""
    ranks = 6
    fewest, more = (capabilities.omega(EDEN(bits=bits, block=64), N) for bits in (0.125, 0.5))
    gathered, again = (noise(ranks, 30, strategy) for strategy in ("allgather", "two_phase"))
    assert gathered == pytest.approx(fewest / ranks, rel=0.15)
    assert again == pytest.approx(gathered + more * (1 / ranks + gathered), rel=0.15)


@pytest.mark.parametrize("memory", ["none", "preconditioned"])
def test_all_ranks_decode_the_same_mean_and_a_bad_step_leaves_nothing_behind(memory: str) -> None:
    def spoilt(step: int, rank: int) -> Tensor:
        grad = apart(step, rank)
        if (step, rank) == (2, 3):
            grad[PLACES["b.weight"].start] = torch.nan
        return grad

    kept: Memory = registry.build("memory", memory)
    ranks = exchange_in_threads(EDEN(bits=0.125, block=64), 5, 4, spoilt, strategy="two_phase", memory=kept)
    for step in range(4):
        outs = [rank.steps[step].out[PLACES["a.weight"]] for rank in ranks]
        assert bool(torch.isnan(outs[0]).all()) == (step == 2)
        assert all(torch.equal(outs[0], out) for out in outs[1:] if step != 2)
    for rank in ranks:
        for name, kinds in rank.steps[2].before.items():
            assert all(torch.equal(tensor, rank.steps[2].after[name][kind]) for kind, tensor in kinds.items())


def test_the_code_of_means_is_that_of_gradients_where_its_noise_is_small() -> None:
    for label in ("eden:bits=0.5", "eden", "eden:bits=0.125,scaled=true", "qsgd:bits=2", "twobit"):
        compressor = registry.build("compressors", label)
        assert capabilities.for_mean(compressor) is compressor
    assert capabilities.for_mean(EDEN(fraction=0.1, block=256)) == EDEN(bits=0.5, block=256)


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
