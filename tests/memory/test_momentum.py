"""u = beta u + (1 - beta) g on every path, and all of it can be taken back."""

from __future__ import annotations

import pytest
import torch

from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.signs.signum import Signum
from gradwire.contrib.memory.momentum import Momentum
from gradwire.errors import ConfigError
from gradwire.memory.base import check_memory
from gradwire.vocabulary import Key
from tests.cases import together

N = 1000


@together
@pytest.mark.parametrize("compressor", [Signum(), Signum(ties="zero"), EFSignSGD(), BF16()], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_running_mean_is_sent_and_can_be_taken_back(compressor, scale):
    if scale != 1.0 and not compressor.summable:
        return
    grad, momentum, status = torch.randn(N), torch.randn(N), torch.zeros(1, dtype=torch.int32)
    before, expected = momentum.clone(), 0.75 * momentum + 0.25 * grad
    layout = compressor.layout((N,))
    payload, wanted = (layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8)) for _ in range(2))
    Momentum(0.75).encode(compressor, grad, {"momentum": momentum}, payload, {}, Key(), status, scale)
    torch.testing.assert_close(momentum, expected, rtol=0, atol=1e-6)
    compressor.encode(momentum * scale, wanted, {}, Key())
    assert all(torch.equal(sent, want) for sent, want in zip(payload, wanted, strict=True))
    assert status.item() == 0
    Momentum(0.75).rollback(grad, {"momentum": momentum})
    assert torch.equal(momentum, before)


@together
@pytest.mark.parametrize("compressor", [Signum(), Signum(ties="zero")], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_reported(compressor, bad):
    grad, momentum, status = torch.zeros(N), torch.ones(N), torch.tensor([2], dtype=torch.int32)
    grad[-1] = bad
    payload = (torch.empty(compressor.layout((N,)).nbytes, dtype=torch.uint8),)
    Momentum().encode(compressor, grad, {"momentum": momentum}, payload, {}, Key(), status)
    assert status.item() == 3
    assert grad.eq(1).all()


def test_methods_of_several_rounds_are_refused():
    for call in (
        lambda: Momentum().compensate(torch.ones(1), {}),
        lambda: Momentum().update(torch.ones(1), {}, torch.tensor(False)),
    ):
        with pytest.raises(ConfigError, match="memory 'momentum' serves methods of one round"):
            call()


def test_methods_that_need_a_residual_refuse_it() -> None:
    with pytest.raises(ConfigError, match="memory 'momentum' loses for good what TopK"):
        check_memory(TopK(), Momentum(), force=False)
    check_memory(TopK(), Momentum(), force=True)
    for force in (False, True):
        with pytest.raises(ConfigError, match="memory 'momentum' loses gradients: the residual is part of 'twobit'"):
            check_memory(TwoBit(), Momentum(), force=force)


def test_methods_whose_noise_is_larger_than_their_signal_take_it() -> None:
    code = QSGD(bits=2)
    assert code.feedback == "unsafe"
    check_memory(code, Momentum(), force=False)


@together
@pytest.mark.parametrize("bad", [1.0, 0.99999999, -0.1, 2, float("nan"), True, "0.9", None])
def test_a_value_out_of_range_is_named(bad):
    with pytest.raises(ConfigError, match=r"Momentum.beta must be in \[0, 1\) in float32, got "):
        Momentum(bad)
