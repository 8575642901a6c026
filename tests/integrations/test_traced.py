"""DDP's Python reducer, which compiled autograd traces."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.amp_jobs import same
from tests.integrations.traced_jobs import reducers


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_ranks(2, reducers)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_the_python_reducer_trains_as_the_other_does(way: str, told: list[dict[str, Any]]) -> None:
    """Compressed, once for each accumulated step, with the same bits."""
    for result in told:
        ours, plain = result[way], result["plain"]
        assert {key: ours[key] for key in plain if key not in ("kept", "captures")} == {
            key: plain[key] for key in plain if key not in ("kept", "captures")
        }
        assert same(ours["kept"], plain["kept"])
        assert plain["steps"] == 6
        assert plain["ratio"] > 5


def test_compiled_autograd_did_trace_it(told: list[dict[str, Any]]) -> None:
    """The backward pass is compiled as one graph, which is said to be whole."""
    for result in told:
        assert result["compiled"]["captures"] >= 1
        assert result["eager"]["captures"] == 0


def test_an_overflow_under_it_leaves_every_residual(told: list[dict[str, Any]]) -> None:
    first, second = (result["scaled"] for result in told)
    assert first["digest"] == second["digest"]
    assert first["skipped"] == second["skipped"] == [False, False, True, False]
    assert first["untouched"]
    assert second["untouched"]


def test_what_would_not_be_exchanged_is_said(told: list[dict[str, Any]]) -> None:
    for result in told:
        for said in result["unused"].values():
            assert "every parameter must get a gradient in every backward pass under 'python_reducer'" in said
        assert "model must be the DDP model itself under optimize_ddp='python_reducer'" in result["module"]
