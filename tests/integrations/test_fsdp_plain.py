"""Steps in which nothing is compressed are FSDP's own, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_plain_jobs import DTYPES, OURS, alone, differing, left
from tests.once import once


@once
def told() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(4, alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ours", OURS)
def test_uncompressed_steps_are_those_of_fsdp_alone(ours: str, dtype: str) -> None:
    for result in told():
        wanted, found = result[dtype]["FSDP alone"], result[dtype][ours]
        assert len(wanted) == len(found) > 6
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize("ours", OURS)
def test_their_bytes_are_those_of_fsdp_alone(ours: str) -> None:
    """On Gloo a reduce-scatter is an all-reduce inside."""
    for result in told():
        counted = result["float32"][f"{ours}, counted"]
        assert counted["steps"] == 6
        assert counted["bytes_sent"] == pytest.approx(counted["dense_bytes"], rel=0.01)
        half = result["bfloat16"][f"{ours}, counted"]
        assert 2 * half["dense_bytes"] == counted["dense_bytes"]


def test_ranks_that_disagree_on_compressing_hear_of_it() -> None:
    for said in run_ranks(2, differing):
        assert "GroupError: " in said
        assert "name is 'topk' on rank 0; 'none' on rank 1" in said


def test_what_waits_for_a_method_that_is_left_is_sent() -> None:
    for result in run_ranks(2, left):
        assert result["lost"] < 1e-6
        assert result["waited"] > 0 == result["waits"]
