"""Qsparse-local-SGD over real Gloo processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.optim import QsparseLocal
from gradwire.testing.processes import run_ranks
from tests.optim.jobs import dense_loss, loss_of, model_of, poisoned, refused, resume, sgd, train

SPARSE = {"compressor": "topk", "ratio": 0.1, "min_numel": 0, "every": 4}


def test_it_learns_nearly_like_sgd_and_ranks_meet_after_every_round() -> None:
    results = run_ranks(2, train, "qsparse_local", 160, SPARSE)
    dense = dense_loss(sgd, 160)
    assert results[0]["digests"] == results[1]["digests"]
    assert len(set(results[0]["digests"])) == 40
    assert results[0]["loss"] < dense + 0.1 < loss_of(model_of()) - 1.0


def _by_hand(rank: int) -> list[list[float]]:
    """Two ranks, two local steps of 1 each, the largest of four elements sent, the rest remembered."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = QsparseLocal(inner, "topk", ratio=0.25, every=2, min_numel=0)
    seen = []
    for _ in range(2):
        for _ in range(2):
            model.weight.grad = torch.tensor([[4.0, 3.0, 0.0, 0.0] if rank == 0 else [2.0, 0.5, 0.0, 0.0]])
            optimizer.step()
        seen.append(model.weight[0].tolist())
    return seen


def test_a_round_by_hand() -> None:
    # Ways (8, 6) and (4, 1): 8 and 4 are sent, 6 and 1 kept. Then x is (8, 12) and (4, 2): 12 and 4 are sent.
    assert run_ranks(2, _by_hand) == [[[-6.0, 0.0, 0.0, 0.0], [-8.0, -6.0, 0.0, 0.0]]] * 2


@pytest.mark.parametrize("cut", [2, 5, 12])
def test_a_checkpoint_continues_bit_for_bit(cut: int) -> None:
    assert all(run_ranks(2, resume, "qsparse_local", cut, 16, SPARSE))


def test_a_nan_in_a_local_step_leaves_its_rank_as_it_was() -> None:
    results = run_ranks(2, poisoned, "qsparse_local", 3, {**SPARSE, "every": 8})
    assert [result["parameters"] and result["kept"] for result in results] == [False, True]
    assert results[0]["end"] == results[1]["end"]


def test_bad_parameters_are_refused() -> None:
    text = run_ranks(1, refused, "qsparse_local", {**SPARSE, "every": True})[0]
    assert text == "ConfigError: QsparseLocal.every must be an integer >= 1, got True"


def test_parameters_that_were_changed_by_hand_are_where_the_next_round_begins() -> None:
    """Loading weights is no way that was gone: one hundredth of it would be sent, and the rest taken back."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        weight = nn.Parameter(torch.zeros(40, 40))
        optimizer = QsparseLocal(torch.optim.SGD([weight], lr=0.1), "topk", ratio=0.01, every=1, min_numel=0)
        loaded = torch.linspace(-1, 1, 1600).view(40, 40)
        with torch.no_grad():
            weight.copy_(loaded)
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        assert torch.equal(weight.detach(), loaded)
    finally:
        dist.destroy_process_group()
