"""The error that auto foretells of a choice, against what exchanges between real processes add."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.auto.choices import Coded, exact_mean, noise_added
from gradwire.engine.exchange import Exchange
from gradwire.testing.processes import run_ranks

NUMEL = 1 << 16


def _measured(rank: int, bits: int, strategy: str, common: float) -> list[float]:
    """The code's share of a gradient; the squared norms of own ones, of the mean, of what arrived and of its noise."""
    compressor = gradwire.compressor("eden", bits=bits)
    exchange = Exchange(compressor, strategy=strategy, group=dist.group.WORLD)
    world, generator = exchange.channel.world, torch.Generator().manual_seed(rank)
    shared = common * torch.randn(NUMEL, generator=torch.Generator().manual_seed(99))
    sums = torch.zeros(4, dtype=torch.float64)
    for _ in range(4):
        gradient = shared + torch.randn(NUMEL, generator=generator)
        mean = gradient.clone()
        exchange.channel.all_reduce(mean)
        mean /= world
        arrived = gradient.clone()
        exchange.begin_step()
        exchange.run(arrived, [("weight", (NUMEL,))])
        exchange.end_step()
        sums += torch.stack([each.square().sum() for each in (gradient, mean, arrived, arrived - mean)]).double() / 4
    exchange.channel.all_reduce(sums)
    # The exact share of a Gaussian vector whose signs are sent.
    omega = {1: torch.pi / 2 - 1, 2: 0.1331}[bits]
    return [omega, *(sums / world).tolist()]


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("common", [0.0, 1.0])
@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
def test_the_noise_of_a_mean_that_is_encoded_again_has_that_of_the_messages_in_it(
    bits: int, common: float, strategy: str
) -> None:
    omega, own, mean, arrived, noise = run_ranks(5, _measured, bits, strategy, common)[0]
    coded = Coded(omega, own, 5, strategy == "two_phase")
    assert noise_added(mean, coded) == pytest.approx(noise, rel=0.06)
    assert exact_mean(arrived, coded) == pytest.approx(mean, rel=0.06)
