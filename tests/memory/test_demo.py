"""D = beta D + g is sent and lessened by what was sent, and all of it can be taken back."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire import registry
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.sparse.topk import TopK
from gradwire.contrib.memory.demo import DeMoMemory
from gradwire.errors import ConfigError
from gradwire.vocabulary import Key
from tests.cases import together

N = 1000


def kept_of(momentum: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"residual": momentum}


@together
@pytest.mark.parametrize("name", ["demo", "topk", "qsgd", "bf16"])
@pytest.mark.parametrize("beta", [0.0, 0.75, 0.999])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_what_was_sent_leaves_the_momentum_and_comes_back(name: str, beta: float, scale: float) -> None:
    compressor = registry.build("compressors", name)
    if scale != 1.0 and not compressor.summable:
        return
    shape = (25, 40)
    grad, momentum, status = torch.randn(shape), torch.randn(shape), torch.zeros(1, dtype=torch.int32)
    x, before = beta * momentum + grad, momentum.clone()
    layout = compressor.layout(shape)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    state = compressor.init_state(shape, Key())
    DeMoMemory(beta).encode(compressor, grad, kept_of(momentum), payload, state, Key(), status, scale)
    sent = torch.zeros(shape)
    compressor.add_decoded(payload, sent, 1 / scale)
    torch.testing.assert_close(sent + momentum, x, rtol=0, atol=2e-6)
    assert status.item() == 0
    DeMoMemory(beta).rollback(grad, kept_of(momentum))
    assert torch.equal(momentum, before)


def test_what_waits_grows_to_the_momentum_of_all_steps() -> None:
    """An element that is never among the largest has the momentum of an optimizer without dampening."""
    momentum, largest = torch.zeros(4), TopK(ratio=0.25)
    layout = largest.layout((4,))
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    for _ in range(50):
        grad = torch.tensor([1.0, 0.001, 0.0, -0.001])
        DeMoMemory(0.9).encode(largest, grad, kept_of(momentum), payload, {}, Key(), torch.zeros(1).int())
    expected = 0.001 * (1 - 0.9**50) / (1 - 0.9)
    torch.testing.assert_close(momentum, torch.tensor([0.0, expected, 0.0, -expected]), rtol=1e-5, atol=0)


@together
@pytest.mark.parametrize(("value", "momentum"), [(math.nan, 1.0), (math.inf, 1.0), (6e4, 1e4)])
def test_what_is_not_finite_is_reported_and_taken_back(value: float, momentum: float) -> None:
    """In float16 7e4 is infinite, although the momentum is not."""
    grad, kept = torch.tensor([0.0, value]), torch.full((2,), momentum)
    status = torch.tensor([2], dtype=torch.int32)
    payload = FP16().layout((2,)).views(torch.zeros(8, dtype=torch.uint8)[:4])
    DeMoMemory().encode(FP16(), grad, kept_of(kept), payload, {}, Key(), status)
    assert status.item() == 3
    DeMoMemory().rollback(grad, kept_of(kept))
    assert kept.eq(momentum).all()


def test_an_update_keeps_the_old_momentum_of_a_bad_step() -> None:
    momentum = torch.ones(2)
    DeMoMemory().update(torch.tensor([math.nan, 5.0]), kept_of(momentum), torch.tensor(True))
    assert momentum.tolist() == [1.0, 1.0]
    DeMoMemory().update(torch.tensor([4.0, 5.0]), kept_of(momentum), torch.tensor(False))
    assert momentum.tolist() == [4.0, 5.0]


@together
@pytest.mark.parametrize("bad", [1.0, -0.1, 2, float("nan"), True, "0.9", None])
def test_a_value_out_of_range_is_named(bad: object) -> None:
    with pytest.raises(ConfigError, match=r"DeMoMemory.beta must be in \[0, 1\), got "):
        DeMoMemory(bad)  # type: ignore[arg-type]
