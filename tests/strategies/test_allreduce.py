"""Payloads summed on their way."""

import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.strategies.allreduce import AllReduce
from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from tests.strategies.jobs import SHAPES, gradient, numel, run_exchange


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_the_result_is_the_mean_to_the_precision_of_the_cast(name: str, tolerance: float) -> None:
    (first, *_) = run_ranks(4, run_exchange, name, {}, {}, {"min_numel": 0}, 1)
    n = numel(SHAPES)
    mean = sum(gradient(0, rank, n) for rank in range(4)) / 4
    torch.testing.assert_close(first["outputs"][0], mean, rtol=tolerance, atol=tolerance)


def test_large_values_are_divided_before_they_are_summed() -> None:
    (first, *_) = run_ranks(2, _large)
    assert first == pytest.approx(60000.0, rel=1e-3)


def _large(rank: int) -> float:
    import torch.distributed as dist

    from gradwire.compressors.casts.fp16 import FP16
    from gradwire.engine.exchange import Exchange

    exchange = Exchange(FP16(), group=dist.group.WORLD)
    flat = torch.full((2048,), 60000.0)
    exchange.begin_step()
    exchange.run(flat, [("w", (2048,))])
    return float(flat.max())


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_feedback_on_casts_loses_nothing_over_time(name: str) -> None:
    results = run_ranks(2, run_exchange, name, {}, {"memory": "residual"}, {"min_numel": 0}, 5)
    n = numel(SHAPES)
    put = sum(gradient(s, r, n).double() for s in range(5) for r in range(2)) / 2
    got = sum(results[0]["outputs"]).double()
    flat = [torch.cat([result["residuals"][-1][shape[0]] for shape in SHAPES]).double() for result in results]
    torch.testing.assert_close(got + sum(flat) / 2, put, rtol=0, atol=2e-3 if name == "fp16" else 2e-2)


def test_payloads_that_cannot_be_summed_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be summed: use strategy='allgather' or 'two_phase'"):
        AllReduce().check(TwoBit())
