"""A gradient lies in DDP's bucket as its parameter lies in memory; methods that look at shapes must know."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compressors.simple import SimpleCompressor
from gradwire.frontends.ddp import compress_ddp
from gradwire.frontends.optimizer import compress_optimizer
from gradwire.frontends.setup import in_memory
from gradwire.testing.processes import run_ranks


class Transposed(nn.Module):
    """x @ W with W stored the other way round, so that W's gradient is a transposed view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(96, 64).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Spy(SimpleCompressor):
    def __init__(self) -> None:
        super().__init__()
        self._seen: list[torch.Tensor] = []

    def compress(self, tensor, name):
        self._seen.append(tensor.clone())
        return [tensor.half()], None

    def decompress(self, tensors, ctx):
        return tensors[0].float()


def _low_rank(rank: int, plain: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient of rank 1, exchanged by a method of rank 1; and what it should be."""
    model = Transposed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if plain:
        compress_optimizer(optimizer, model, "powersgd", rank=1)
    else:
        model = DistributedDataParallel(model)
        compress_ddp(model, "powersgd", rank=1)
    x, weights = torch.arange(64.0).view(1, 64) * (rank + 1), torch.linspace(-1, 1, 96)
    (model(x) * weights).sum().backward()
    optimizer.step()
    weight = next(model.parameters())
    return weight.grad.clone(), torch.arange(64.0).view(64, 1) * 1.5 * weights


@pytest.mark.parametrize("plain", [False, True], ids=["ddp", "optimizer"])
def test_a_transposed_parameter_keeps_its_rank(plain: bool) -> None:
    for got, expected in run_ranks(2, _low_rank, plain):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def _channels_last(_rank: int, plain: bool) -> tuple[bool, tuple[int, ...]]:
    torch.manual_seed(0)
    model = nn.Conv2d(8, 16, 3, bias=False).to(memory_format=torch.channels_last)
    optimizer, spy = torch.optim.SGD(model.parameters(), lr=0.0), Spy()
    x = torch.randn(1, 8, 9, 9)
    if plain:
        compress_optimizer(optimizer, model, spy, strategy="allgather")
        model(x).square().sum().backward()
        optimizer.step()
    else:
        wrapped = DistributedDataParallel(model)
        compress_ddp(wrapped, spy, strategy="allgather")
        wrapped(x).square().sum().backward()
    seen = spy._seen[-1]
    return torch.allclose(seen, in_memory(model.weight.grad), rtol=1e-2, atol=1e-2), tuple(seen.shape)


@pytest.mark.parametrize("plain", [False, True], ids=["ddp", "optimizer"])
def test_a_channels_last_weight_is_seen_in_the_order_of_its_memory(plain: bool) -> None:
    assert run_ranks(2, _channels_last, plain) == [(True, (16, 3, 3, 8))] * 2


@pytest.mark.parametrize("shape", [(), (3,), (4, 1, 5), (2, 3, 4, 5)])
def test_what_lies_in_row_order_stays_as_it_is(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    assert in_memory(x) is x


def test_what_has_gaps_keeps_its_shape() -> None:
    assert in_memory(torch.zeros(6, 6)[:, ::2].t()).shape == (3, 6)
