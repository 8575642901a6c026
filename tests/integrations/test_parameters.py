"""Parameters that are unused, frozen, shared, and ranks that have no data left: what waits is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.parameters_jobs import estimates, frozen, joined, tied, unused

STRATEGIES: dict[str, dict[str, Any]] = {
    "allgather": {"ratio": 0.1},
    "two_phase": {"ratio": 0.1, "strategy": "two_phase"},
    "broadcast": {"ratio": 0.1, "strategy": "broadcast"},
}


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(2, unused, STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_waits_for_a_parameter_that_no_rank_used_is_not_sent(strategy: str, told: list[dict[str, Any]]) -> None:
    """DDP throws away what arrives for it."""
    for result in told:
        assert result[strategy]["untouched"]
        assert result[strategy]["none"] == [True, True], "DDP did not take the branch for unused, so nothing is tested"
        assert result[strategy]["balance"] < 1e-6


def test_what_methods_keep_alike_on_all_ranks_stays_alike() -> None:
    first, second = run_ranks(2, estimates)
    assert first == second


JOINED: dict[str, tuple[str, dict[str, Any]]] = {
    "allgather": ("twobit", {"threshold": 1e-3}),
    "broadcast": ("topk", {"strategy": "broadcast"}),
    "two_phase": ("topk", {"strategy": "two_phase"}),
    "allreduce": ("powersgd", {"rank": 2}),
    "summed": ("fp16", {}),
    "variable": ("strom", {"threshold": 1e-3}),
    "oktopk": ("oktopk", {}),
}


def test_uneven_inputs_by_every_strategy() -> None:
    first, second = run_ranks(2, joined, JOINED)
    assert "divide_by_initial_world_size must be True" in first["refused"]
    assert "divide_by_initial_world_size must be True" in second["refused"]
    for name in JOINED:
        assert first[name] == second[name], name
        assert first[name][1] == 3


def test_what_waits_for_a_frozen_parameter_is_kept_until_it_is_trained_again() -> None:
    first, second = run_ranks(2, frozen)
    assert first["digest"] == second["digest"]
    for result in (first, second):
        assert result["kept"]
        assert result["moved"]
        assert "after unfreezing make it anew, got ['0.weight', '0.bias']" in result["late"]
        assert result["back"]
        assert result["sent"]


def test_a_shared_parameter_has_one_residual() -> None:
    for result in run_ranks(2, tied):
        assert result["same"]
        assert result["names"] == ["residual/first.weight", "residual/head.weight"]
