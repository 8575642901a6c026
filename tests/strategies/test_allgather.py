"""The mean of what every rank decoded, and traffic of (W-1) payloads."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.engine.exchange import Exchange
from gradwire.testing.processes import run_ranks
from gradwire.transport.handshake import DIGEST
from tests.strategies.jobs import SHAPES, gradient, numel, run_exchange


def test_the_result_is_the_mean_of_the_decoded_payloads() -> None:
    options, policy = {"strategy": "allgather"}, {"min_numel": 0}
    (first, *_) = run_ranks(3, run_exchange, "twobit", {"threshold": 1.0}, options, policy, 1)
    n, code = numel(SHAPES), TwoBit(threshold=1.0)
    expected = torch.zeros(n)
    for rank in range(3):
        x = gradient(0, rank, n)
        expected += code.decompress(code.compress(x), (n,)) * torch.tensor(1 / 3)
    torch.testing.assert_close(first["outputs"][0], expected, rtol=0, atol=1e-7)


def test_traffic_is_two_payloads_for_three_ranks() -> None:
    n = numel(SHAPES)
    payload = 4 * -(-n // 16)
    for result in run_ranks(3, run_exchange, "twobit", {}, {"strategy": "allgather"}, {"min_numel": 0}, 1):
        assert result["sent"] == 2 * (8 + payload + -payload % 8 + DIGEST)


PARAMS = [("weight", (64, 64)), ("bias", (40,)), ("other", (64, 32)), ("norm", (8,))]
DENSE = torch.zeros(64 * 64 + 40 + 64 * 32 + 8, dtype=torch.bool)
DENSE[4096:4136] = DENSE[-8:] = True


def _carried(rank: int, strategy: str) -> dict[str, Any]:
    """Four steps: all well, an infinity where it travels uncompressed, one where it is compressed, all well."""
    exchange = Exchange(TwoBit(threshold=1e-3), strategy=strategy, group=dist.group.WORLD)
    told: dict[str, Any] = {"means": [], "sent": [], "collectives": []}
    for step in range(4):
        flat = gradient(step, rank, len(DENSE))
        if rank == 1 and step in (1, 2):
            flat[4100 if step == 1 else 7] = float("inf")
        sent, begun = exchange.counters.bytes_sent, exchange.channel.traffic.begun
        exchange.begin_step()
        exchange.run(flat, PARAMS)
        told["means"].append(flat)
        told["sent"].append(exchange.counters.bytes_sent - sent)
        told["collectives"].append(exchange.channel.traffic.begun - begun)
    return told | {"nonfinite": exchange.metrics()["nonfinite_steps"]}


@pytest.mark.parametrize("strategy", ["allgather", "broadcast"])
def test_between_two_ranks_what_is_not_compressed_travels_with_the_payloads(strategy: str) -> None:
    results = run_ranks(2, _carried, strategy)
    message = 8 + 4096 // 4 + 2048 // 4 + 4 * 48
    for told in results:
        assert told["sent"] == [message] * 4
        together = [2, 1, 1, 1] if strategy == "allgather" else [2] * 4
        assert told["collectives"] == together, "the digests, and one message; from the second step on both in one"
        assert told["nonfinite"] == 2
        for step, (mean, other) in enumerate(zip(told["means"], results[0]["means"], strict=True)):
            assert torch.equal(mean.nan_to_num(7.0), other.nan_to_num(7.0))
            expected = (gradient(step, 0, len(DENSE)) + gradient(step, 1, len(DENSE))) / 2
            exact = DENSE.clone()
            exact[4100] = step != 1
            torch.testing.assert_close(mean[exact], expected[exact], rtol=1e-6, atol=1e-9)
            assert bool(mean[~DENSE].isnan().all()) == (step in (1, 2))
            assert not mean[4100].isfinite() if step == 1 else mean[4100].isfinite()
