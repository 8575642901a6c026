"""Weights that FSDP2 gathers compressed: all ranks compute with the same, and the optimizer's stay exact."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_weights_jobs import CODES, LAYOUTS, weights
from tests.once import once

LOSES = {"blockwise8": 0.01, "blockwise8:block=16": 0.005, "fp8": 0.04, "bf16": 0.003}


@once
def told() -> list[dict[Any, Any]]:
    return run_ranks(4, weights)


CASES = [("flat", code) for code in CODES] + [(layout, "blockwise8") for layout in LAYOUTS[1:]]


@pytest.mark.parametrize(("layout", "code"), CASES)
def test_all_ranks_compute_with_the_same_decoded_weights(layout: str, code: str) -> None:
    for result in told():
        case = result[layout, code]
        assert case["masters"]
        assert case["twice"]
        assert case["closed"]
        assert case["coded"]
        for used, exact, other in zip(case["used"], case["exact"], told()[0][layout, code]["used"], strict=True):
            assert torch.equal(used, other)
            assert 0 < float((used - exact).norm() / exact.norm()) < LOSES[code]


@pytest.mark.parametrize(("layout", "code"), CASES)
def test_it_trains_as_with_exact_weights(layout: str, code: str) -> None:
    for result in told():
        case, plain = result[layout, code], result[layout, "None"]
        assert case["loss"] == pytest.approx(plain["loss"], rel=0.02)
        assert plain["bytes"] == {}
        assert all(torch.equal(*pair) for pair in zip(case["trained"], told()[0][layout, code]["trained"], strict=True))


@pytest.mark.parametrize(("code", "ratio"), [("blockwise8", 3.8), ("fp8", 3.8), ("bf16", 1.9)])
def test_the_bytes_are_those_of_the_code(code: str, ratio: float) -> None:
    for result in told():
        case = result["flat", code]["bytes"]
        assert ratio < case["weights_ratio"] < ratio + 0.2
        # Three modules of 48 x 96, 96 x 48 and 10 x 48, gathered over four ranks in float32.
        assert case["weights_dense_bytes"] == 2 * 3 * 4 * (2 * 12 * 2 * 48 + 3 * 48)


def test_what_is_excluded_travels_as_it_is() -> None:
    for result in told():
        up, down, _ = zip(result["flat", "exclude"]["used"], result["flat", "exclude"]["exact"], strict=True)
        assert torch.equal(*up)
        assert not torch.equal(*down)


def test_weights_in_bfloat16() -> None:
    for result in told():
        case = result["flat", "bfloat16"]
        assert case["masters"]
        assert 1.8 < case["bytes"]["weights_ratio"] < 2
        for used, exact in zip(case["used"], case["exact"], strict=True):
            assert used.dtype == torch.bfloat16
            assert float((used.float() - exact).norm() / exact.norm()) < 0.012


def test_gradients_and_weights_and_shards_of_another_size() -> None:
    for result in told():
        case = result["flat", "both"]
        assert case["end"] < 0.9 * case["start"]
        assert case["ratio"] > 3
        assert case["weights_ratio"] > 3.5
        assert all(
            torch.equal(*pair) for pair in zip(case["trained"], told()[0]["flat", "both"]["trained"], strict=True)
        )


def test_weights_alone_may_be_named() -> None:
    for result in told():
        case = result["flat", "auto"]
        assert case["end"] < 0.9 * case["start"]
        assert case["auto_phase"]
        assert case["weights_ratio"] > 3.5
        pairs = zip(case["trained"], told()[0]["flat", "auto"]["trained"], strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


REFUSED = {
    "random": "weights must be a method whose error is small and that is not random, such as .* got 'qsgd'",
    "memory": "weights must be a method whose error is small and that is not random, such as .* got 'topk'",
    "ranks": "weights is 'blockwise8' on ranks 0, 1, 3; 'fp8' on rank 2",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_carry_weights_is_refused(case: str) -> None:
    for result in told():
        assert re.search(REFUSED[case], result["refused"][case]), result["refused"][case]
