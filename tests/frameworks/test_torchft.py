"""A wrapped group under torchft: its manager averages between replicas, and one of them goes."""

from __future__ import annotations

import importlib.util

import pytest

from gradwire.testing.processes import run_ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")


def test_replicas_that_reduce_on_wrapped_groups_are_averaged_and_may_go() -> None:
    from tests.frameworks.torchft_jobs import GONE, STEPS, managed

    for rank, result in enumerate(run_ranks(4, managed)):
        steps = STEPS if rank < 2 else GONE
        assert result["replicas"] == ([2] * GONE + [1] * (STEPS - GONE))[:steps]
        assert result["committed"] == [True] * steps
        # bfloat16 rounds by 0.2 % of the length.
        assert 1e-5 < min(result["errors"]) <= max(result["errors"]) < 4e-3
        assert len(result["errors"]) == steps
        assert 1.9 < result["metrics"]["ratio"] < 2.1
