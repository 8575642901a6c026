"""u and v by hand, what is masked, what is clipped, and the way back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.sparse.dgc import DGC
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.errors import ConfigError
from gradwire.memory.dgc import DGCMemory
from gradwire.vocabulary import Key
from tests.cases import together


def kept_for(n: int) -> dict[str, Tensor]:
    return {name: torch.zeros(n) for name in DGCMemory.buffers}


def step(
    memory: DGCMemory, compressor: Compressor, grad: Tensor, kept: dict[str, Tensor], scale: float = 1.0
) -> tuple[Tensor, int]:
    """The decoded tensor, and the status; ``grad`` is overwritten."""
    layout, status = compressor.layout(grad.shape), torch.zeros(1, dtype=torch.int32)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    memory.encode(compressor, grad, kept, payload, {}, Key(), status, scale)
    out = torch.zeros_like(grad)
    compressor.add_decoded(payload, out)
    return out, int(status)


def test_velocity_selects_and_both_are_masked() -> None:
    """The gradient's largest element is the first in both steps, the velocity's largest is the second in step two."""
    memory, code, kept = DGCMemory(momentum=0.5), DGC(ratio=1 / 3), kept_for(3)
    assert step(memory, code, torch.tensor([8.0, 4.0, 0.0]), kept)[0].tolist() == [8.0, 0.0, 0.0]
    assert kept["residual"].tolist() == [0.0, 4.0, 0.0]
    assert kept["momentum"].tolist() == [0.0, 4.0, 0.0]
    assert step(memory, code, torch.tensor([7.0, 3.0, 1.0]), kept)[0].tolist() == [0.0, 9.0, 0.0]
    assert kept["residual"].tolist() == [7.0, 0.0, 1.0]
    assert kept["momentum"].tolist() == [7.0, 0.0, 1.0]


def test_what_is_sent_below_zero_is_masked_too() -> None:
    memory, kept = DGCMemory(momentum=0.5), kept_for(3)
    assert step(memory, DGC(ratio=1 / 3), torch.tensor([-8.0, 4.0, -2.0]), kept)[0].tolist() == [-8.0, 0.0, 0.0]
    assert kept["momentum"].tolist() == [0.0, 4.0, -2.0]


def test_nesterov_looks_ahead() -> None:
    memory, kept = DGCMemory(momentum=0.5, nesterov=True), kept_for(2)
    step(memory, DGC(ratio=0.5), torch.tensor([8.0, 4.0]), kept)
    assert kept["momentum"].tolist() == [0.0, 2.0]
    assert kept["residual"].tolist() == [0.0, 6.0]
    decoded, _ = step(memory, DGC(ratio=0.5), torch.tensor([0.0, 1.0]), kept)
    assert decoded.tolist() == [0.0, 8.5]


def test_without_momentum_it_is_error_feedback() -> None:
    memory, kept, total, sent = DGCMemory(momentum=0.0), kept_for(64), torch.zeros(64), torch.zeros(64)
    for seed in range(10):
        grad = torch.randn(64, generator=torch.Generator().manual_seed(seed))
        total += grad
        sent += step(memory, DGC(ratio=0.1), grad, kept)[0]
    torch.testing.assert_close(sent + kept["residual"], total)


def test_the_norm_is_clipped_not_the_elements() -> None:
    memory, kept = DGCMemory(momentum=0.0, clip=2.5), kept_for(2)
    assert step(memory, DGC(ratio=1.0), torch.tensor([3.0, -4.0]), kept)[0].tolist() == [1.5, -2.0]
    assert step(memory, DGC(ratio=1.0), torch.tensor([1.0, -2.0]), kept)[0].tolist() == [1.0, -2.0]
    assert step(memory, DGC(ratio=1.0), torch.zeros(2), kept)[0].tolist() == [0.0, 0.0]


def test_a_norm_that_overflows_float32_is_clipped_too() -> None:
    decoded, status = step(DGCMemory(clip=1.0), DGC(ratio=1.0), torch.tensor([3e30, -4e30]), kept_for(2))
    torch.testing.assert_close(decoded, torch.tensor([0.6, -0.8]))
    assert status == 0


def test_a_code_that_rounds_leaves_the_rounding_in_the_velocity() -> None:
    kept = kept_for(1)
    decoded, _ = step(DGCMemory(), TwoBit(threshold=0.5), torch.tensor([0.75]), kept)
    assert decoded.tolist() == [0.5]
    assert kept["residual"].tolist() == [0.25]
    assert kept["momentum"].tolist() == [0.0]


def test_a_scaled_payload_keeps_the_velocity_in_gradient_units() -> None:
    kept = kept_for(2)
    decoded, _ = step(DGCMemory(), BF16(), torch.tensor([1.0, 1.0 + 2**-10]), kept, scale=0.25)
    assert decoded.tolist() == [0.25, 0.25]
    assert kept["residual"].tolist() == [0.0, 2**-10]


@together
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_step_is_told_and_taken_back(bad: float, nesterov: bool) -> None:
    memory, kept = DGCMemory(nesterov=nesterov, clip=5.0), kept_for(100)
    for seed in range(3):
        step(memory, DGC(0.05), torch.randn(100, generator=torch.Generator().manual_seed(seed)), kept)
    before = {name: kept[name].clone() for name in ("residual", "momentum")}
    grad = torch.ones(100)
    grad[7] = bad
    assert step(memory, DGC(0.05), grad, kept)[1] == 1
    memory.rollback(grad, kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())


def test_a_method_of_several_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory 'dgc' serves methods of one round"):
        DGCMemory().compensate(torch.zeros(2), kept_for(2))
    assert capabilities.rounds_needed(PowerSGD()) > 1


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"momentum": 1.0}, r"DGCMemory.momentum must be in \[0, 1\) in float32, got 1.0"),
        ({"momentum": 0.99999999}, r"DGCMemory.momentum must be in \[0, 1\) in float32, got 0.99999999"),
        ({"momentum": -0.1}, "momentum"),
        ({"nesterov": 1}, "DGCMemory.nesterov must be True or False, got 1"),
        ({"clip": 0.0}, "DGCMemory.clip must be"),
        ({"clip": math.inf}, "DGCMemory.clip"),
    ],
)
def test_bad_parameters(values: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DGCMemory(**values)
