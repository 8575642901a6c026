"""Shards cut where the code allows, traffic near two payloads, and a residual on both sides."""

from __future__ import annotations

import pytest
import torch

from gradwire import registry
from gradwire.comm._part import Piece, Unit
from gradwire.comm.two_phase import cut
from gradwire.memory.none import NoMemory
from gradwire.testing.processes import run_ranks
from tests.comm.jobs import SHAPES, numel, run_exchange


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
