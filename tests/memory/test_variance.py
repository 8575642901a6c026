"""r and v by hand, what is reset, where squares come from, and the way back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.compressors.casts.bf16 import BF16
from gradwire.contrib.compressors.sparse.variance import Variance
from gradwire.contrib.memory.variance import VarianceMemory
from gradwire.errors import ConfigError
from gradwire.vocabulary import Key
from tests.cases import together


def kept_for(n: int) -> dict[str, Tensor]:
    return {name: torch.zeros(n) for name in VarianceMemory.buffers}


def step(memory: VarianceMemory, grad: Tensor, kept: dict[str, Tensor], code: type = Variance, scale: float = 1.0):
    compressor, status = code(), torch.zeros(1, dtype=torch.int32)
    layout = compressor.layout(grad.shape)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    memory.encode(compressor, grad, kept, payload, {}, Key(), status, scale)
    out = torch.zeros_like(grad)
    compressor.add_decoded(payload, out)
    return out.tolist(), int(status)


def test_a_steady_gradient_is_sent_in_the_second_step_and_a_noisy_one_waits() -> None:
    """r^2 > v: 1 > 1 is false, then 4 > 2; with alternating signs r is 1, 0, 1, and v only grows."""
    memory, kept = VarianceMemory(alpha=1.0, zeta=1.0), kept_for(2)
    assert step(memory, torch.tensor([1.0, 1.0]), kept)[0] == [0.0, 0.0]
    assert kept["residual"].tolist() == [1.0, 1.0]
    assert kept["variance"].tolist() == [1.0, 1.0]
    assert step(memory, torch.tensor([1.0, -1.0]), kept)[0] == [2.0, 0.0]
    assert kept["residual"].tolist() == [0.0, 0.0]
    assert kept["variance"].tolist() == [0.0, 2.0]
    assert step(memory, torch.tensor([1.0, 1.0]), kept)[0] == [0.0, 0.0]
    assert kept["residual"].tolist() == [1.0, 1.0]


def test_variance_fades_where_nothing_is_sent() -> None:
    memory, kept = VarianceMemory(zeta=0.5), kept_for(1)
    step(memory, torch.tensor([2.0]), kept)
    assert kept["variance"].tolist() == [2.0]


def test_alpha_asks_for_more() -> None:
    kept = kept_for(1)
    memory = VarianceMemory(alpha=2.0, zeta=1.0)
    sent = [step(memory, torch.tensor([1.0]), kept)[0][0] for _ in range(4)]
    assert sent == [0.0, 0.0, 4.0, 0.0]


def test_what_the_code_cannot_reach_waits_with_its_variance() -> None:
    """2^-9 stands out as well, but is more than 7 powers below the largest."""
    memory, kept = VarianceMemory(zeta=0.5), kept_for(2)
    for _ in range(2):
        sent, _ = step(memory, torch.tensor([1.0, 2.0**-9]), kept)
    assert sent == [2.0, 0.0]
    assert kept["residual"].tolist() == [0.0, 2.0**-8]
    assert kept["variance"].tolist() == [0.0, 2.0**-18 * 0.75]


@pytest.mark.parametrize(("keep", "left"), [(False, 0.0), (True, -0.5)])
def test_the_rounding_is_dropped_or_kept(keep: bool, left: float) -> None:
    memory, kept = VarianceMemory(keep_error=keep), kept_for(1)
    step(memory, torch.tensor([1.75]), kept)
    assert step(memory, torch.tensor([1.75]), kept)[0] == [4.0]
    assert kept["residual"].tolist() == [left]


def test_observed_squares_take_the_place_of_the_gradient_s() -> None:
    memory, kept = VarianceMemory(squares="observed"), kept_for(3)
    memory.observe(kept["variance"], torch.tensor([0.25, 4.0, math.nan]))
    assert step(memory, torch.tensor([1.0, 1.0, 1.0]), kept)[0] == [1.0, 0.0, 1.0]
    assert kept["variance"][1].item() == pytest.approx(0.999 * 4)


def test_what_was_observed_and_is_not_finite_is_left_out() -> None:
    variance = torch.full((4,), 0.5)
    VarianceMemory.observe(variance, torch.tensor([[math.nan, math.inf], [-math.inf, 0.25]]))
    assert variance.tolist() == [0.5, 0.5, 0.5, 0.75]


def test_gradients_whose_squares_vanish_are_not_held_back_for_ever() -> None:
    assert step(VarianceMemory(), torch.tensor([2.0**-80]), kept_for(1))[0] == [2.0**-80]


def test_a_scaled_payload_keeps_r_in_gradient_units() -> None:
    kept = kept_for(1)
    memory = VarianceMemory(squares="observed", keep_error=True)
    assert step(memory, torch.tensor([1.0 + 2**-10]), kept, BF16, scale=0.25)[0] == [0.25]
    assert kept["residual"].tolist() == [2**-10]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e25])
def test_a_bad_step_is_told_and_taken_back(bad: float) -> None:
    """1e25 is finite, but its square is not."""
    memory, kept = VarianceMemory(), kept_for(100)
    for seed in range(3):
        step(memory, torch.randn(100, generator=torch.Generator().manual_seed(seed)), kept)
    before = {name: kept[name].clone() for name in ("residual", "variance")}
    grad = torch.ones(100)
    grad[7] = bad
    assert step(memory, grad, kept)[1] == 1
    memory.rollback(grad, kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())


def test_a_method_of_several_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory 'variance' serves methods of one round"):
        VarianceMemory().compensate(torch.zeros(2), kept_for(2))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"alpha": 0.0}, "VarianceMemory.alpha must be a finite number > 0, got 0.0"),
        ({"alpha": math.nan}, "alpha"),
        ({"zeta": 0.0}, r"VarianceMemory.zeta must be in \(0, 1\], got 0.0"),
        ({"zeta": 1.5}, "zeta"),
        ({"squares": "none"}, "VarianceMemory.squares must be 'gradient' or 'observed', got 'none'"),
        ({"keep_error": 0}, "VarianceMemory.keep_error"),
    ],
)
def test_bad_parameters(values: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        VarianceMemory(**values)
