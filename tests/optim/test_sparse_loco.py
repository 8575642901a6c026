"""SparseLoCo as a recipe of DiLoCo, over real Gloo processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.contrib.compressors.sparse.sparseloco import SparseLoCo
from gradwire.optim import DiLoCo
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import forward, loss_of, model_of, parameters

EVERY, DECAY = 4, 0.95


def _aggregated(sent: list[Tensor], aggregate: str) -> Tensor:
    """The mean of what the ranks have sent, each shortened to the lower median of their norms."""
    norms = torch.stack([each.norm() for each in sent])
    some = norms[norms > 0].sort().values
    least = some[(len(some) - 1) // 2]
    rows = torch.stack([each * min(1.0, float(least / norm)) for each, norm in zip(sent, norms, strict=True)])
    senders = (torch.stack(sent) != 0).sum(0).clamp(min=1) if aggregate == "senders" else len(sent)
    return rows.sum(0) / senders


def _by_hand(rank: int, aggregate: str) -> float:
    """The largest difference from the algorithm as it is written, with each tensor of a kilobyte or more alone."""
    model, alone = model_of(), model_of()
    options: dict[str, Any] = {"aggregate": aggregate, "ratio": 0.1, "places": "rice", "lr": 0.8, "min_numel": 100}
    optimizer = DiLoCo.sparse_loco(
        torch.optim.AdamW(model.named_parameters(), lr=3e-3), every=EVERY, decay=DECAY, **options
    )
    inner, code = torch.optim.AdamW(alone.parameters(), lr=3e-3), SparseLoCo(ratio=0.1)
    agreed = [param.detach().clone() for param in alone.parameters()]
    errors = [torch.zeros_like(param) for param in agreed]
    worst = 0.0
    for step in range(4 * EVERY):
        for each, its in ((model, optimizer), (alone, inner)):
            forward(each, its, step, rank).backward()
            its.step()
        if step % EVERY < EVERY - 1:
            continue
        for met, param, error in zip(agreed, alone.parameters(), errors, strict=True):
            way = met - param.detach()
            if met.numel() > 100:
                error.mul_(DECAY).add_(way)
                way = code.decompress(code.compress(error), met.shape)
                error.sub_(way)
            sent = [torch.empty_like(way) for _ in range(dist.get_world_size())]
            dist.all_gather(sent, way)
            mean = _aggregated(sent, aggregate) if met.numel() > 100 else torch.stack(sent).mean(0)
            met.sub_(mean, alpha=0.8)
            with torch.no_grad():
                param.copy_(met)
        worst = max(
            worst, *(float((a - b).abs().max()) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
        )
    return worst


@pytest.mark.parametrize("aggregate", ["workers", "senders"])
def test_it_is_the_algorithm_as_its_authors_write_it(aggregate: str) -> None:
    assert max(run_ranks(3, _by_hand, aggregate)) < 1e-5


def _train(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    model = model_of(seed=3 + rank)
    optimizer = DiLoCo.sparse_loco(torch.optim.AdamW(model.named_parameters(), lr=3e-3), **options)
    for step in range(160):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
    optimizer.synchronize()
    return {"end": parameters(model), "loss": loss_of(model), "metrics": optimizer.metrics()}


@pytest.mark.parametrize("streams", [{}, {"fragments": 3, "delay": 3}])
def test_it_learns_with_a_200th_of_a_bit_of_an_element_and_step(streams: dict[str, int]) -> None:
    results = run_ranks(2, _train, {"every": 8, "min_numel": 0, **streams})
    assert results[0]["end"] == results[1]["end"]
    assert results[0]["loss"] < loss_of(model_of()) - 0.3
    elements = sum(param.numel() for param in model_of().parameters())
    rounds = results[0]["metrics"]["rounds"]
    assert 8 * results[0]["metrics"]["bytes_sent"] / (rounds * elements) < 0.4
