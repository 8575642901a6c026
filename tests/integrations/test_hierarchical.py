"""Two hosts of two ranks under DDP, a plain optimizer and FSDP2: one model on all ranks, as good as that of DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.hierarchical_jobs import trained
from tests.integrations.jobs import loss_of, model_of


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(4, trained, 20)


@pytest.mark.parametrize("how", ["ddp", "residual", "loop", "changed"])
def test_all_ranks_end_with_one_model_that_has_learnt(how: str, told: list[dict[str, Any]]) -> None:
    assert len({each[how]["digest"] for each in told}) == 1
    start, plain = loss_of(model_of()), told[0]["plain"]["loss"]
    assert start - told[0][how]["loss"] > 0.8 * (start - plain)
    metrics = told[0][how]["metrics"]
    assert 0 < metrics["local_bytes"] < metrics["bytes_sent"]


def test_replicas_that_share_a_host_are_reduced_there(told: list[dict[str, Any]]) -> None:
    plain, ours = (told[0]["fsdp"][name] for name in ("plain", "blockwise8"))
    for each in told:
        assert all(map(torch.equal, each["fsdp"]["blockwise8"]["weights"], ours["weights"]))
    for one, other in zip(plain["weights"], ours["weights"], strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=5e-3)
    assert 0 < ours["metrics"]["local_bytes"] < ours["metrics"]["bytes_sent"]


def test_a_change_to_hosts_that_cannot_be_changes_nothing(told: list[dict[str, Any]]) -> None:
    said = "ranks_per_host must be a divisor of the number of ranks, 4, got 3"
    assert [each["changed"]["error"] for each in told] == [said] * 4
