"""FSDP2's divide factors: what ``set_gradient_divide_factor`` gives compressed is what it gives FSDP alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_factor_jobs import CASES, flat, hybrid
from tests.once import once

WAYS = {"flat on 2": (flat, 2), "2 x 2": (hybrid, 4), "2 x 1": (hybrid, 2)}
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


@once
def told(way: str) -> list[dict[Any, Any]]:
    function, world = WAYS[way]
    return run_ranks(world, function)


@pytest.mark.parametrize(("factor", "dtype"), CASES)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_divided_as_by_fsdp_alone(way: str, factor: float | None, dtype: torch.dtype) -> None:
    for result in told(way):
        case = result[factor, dtype]
        for way_of_ours in sorted(set(case) - {"plain"}):
            for mine, theirs in zip(case[way_of_ours], case["plain"], strict=True):
                largest = float(theirs.abs().max())
                assert largest > 0
                torch.testing.assert_close(mine, theirs, rtol=0, atol=CLOSE[dtype] * largest)


@pytest.mark.parametrize("way", WAYS)
def test_no_gradient_is_lost_where_the_factor_changes(way: str) -> None:
    assert max(result["conserved"] for result in told(way)) < 1e-5


@pytest.mark.parametrize("way", ["flat on 2", "2 x 2"])
def test_what_waits_is_what_was_sent_whatever_the_factor(way: str) -> None:
    assert all(result["untouched"] for result in told(way))


def test_the_rest_that_fsdp_divides_by_is_torchs() -> None:
    for result in told("flat on 2"):
        assert all(ours == theirs for ours, theirs in result["rules"])
