import re

import pytest
import torch

from gradwire.compressors.signs.signsgd import SignSGD
from gradwire.contrib.compressors.signs.signum import Signum
from gradwire.contrib.memory.momentum import Momentum
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import Key
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import run_method

FIRST = slice(0, 40 * 33)


def push(memory: Momentum, code: Signum, grad: torch.Tensor, momentum: torch.Tensor) -> list[float]:
    """One step of one worker; what it sent."""
    payload, status = (torch.empty(code.layout(grad.shape).nbytes, dtype=torch.uint8),), torch.zeros(1).int()
    memory.encode(code, grad, {"momentum": momentum}, payload, {}, Key(), status)
    return code.decompress(payload[0], grad.shape).tolist()


@pytest.mark.parametrize("ties", ["positive", "zero"])
def test_the_signs_of_a_running_mean(ties):
    code, memory, momentum = Signum(ties), Momentum(beta=0.5), torch.zeros(2)
    assert push(memory, code, torch.tensor([4.0, -4.0]), momentum) == [1, -1]
    assert momentum.tolist() == [2, -2]
    assert push(memory, code, torch.tensor([-1.0, 8.0]), momentum) == [1, 1]
    assert momentum.tolist() == [0.5, 3]


def test_the_momentum_is_no_view_of_the_gradient():
    """An implementation kept a view of the gradient in the first step: its momentum was -5 here, not 0.4."""
    grad, momentum = torch.tensor([10.0]), torch.zeros(1)
    push(Momentum(), Signum(), grad, momentum)
    grad.fill_(-5.0)
    push(Momentum(), Signum(), grad, momentum)
    assert momentum.item() == pytest.approx(0.9 * 1.0 - 0.1 * 5.0)


def test_the_memory_is_the_methods_own():
    exchange = Exchange(Signum())
    assert exchange.methods.memory_for(Signum()) == Momentum(beta=0.9)
    assert Exchange(Signum(), memory=Momentum(0.99)).methods.memory_for(Signum()) == Momentum(0.99)
    for other in ("none", "residual"):
        with pytest.raises(ConfigError, match="is defined with memory 'momentum'"):
            Exchange(Signum(), memory=other)


@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
def test_ranks_vote_with_their_running_means(strategy):
    momenta, expected = torch.zeros(2, numel(SHAPES)), []
    for step in range(3):
        momenta = 0.9 * momenta + 0.1 * torch.stack([gradient(step, rank, numel(SHAPES)) for rank in range(2)])
        expected.append((momenta >= 0).sum(0).ge(1) * 2.0 - 1)
    for result in run_ranks(2, run_method, Signum(), None, strategy, 3):
        for step in range(3):
            assert torch.equal(result["outputs"][step][FIRST], expected[step][FIRST])


def test_a_bad_step_leaves_the_momentum_of_every_rank():
    for result in run_ranks(2, run_method, Signum(), None, "allgather", 3, 1):
        before, bad, after = (kept["momentum/c.weight"] for kept in result["kept"])
        assert torch.equal(before, bad)
        assert not torch.equal(bad, after)
        assert bool(result["outputs"][1][FIRST].isnan().all())


def test_without_its_memory_it_is_signsgd():
    x = torch.randn(100)
    assert torch.equal(Signum().compress(x), SignSGD().compress(x))


def test_bad_ties():
    with pytest.raises(ConfigError, match=re.escape("Signum.ties must be 'positive' or 'zero', got 'no'")):
        Signum(ties="no")
