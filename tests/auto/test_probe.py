"""The error of a code, tried on the gradients of one step."""

from __future__ import annotations

import pytest
import torch

import gradwire
from gradwire.auto.choices import MESSAGES, from_config_of
from gradwire.auto.probe import probe
from gradwire.compressors.casts.none import Identity
from gradwire.engine.exchange import Exchange

NUMEL = 64 * 64
PARAMS = [("edge", (64, 64)), ("head", (64, 64))]


def omega(*sizes: float) -> float:
    """The error of a bucket of two parameters, the first of which has a finer code, with gradients of these sizes."""
    choice, fine = from_config_of("eden:bits=2", MESSAGES), gradwire.compressor("qsgd:bits=8")
    generator = torch.Generator().manual_seed(1)
    flat = torch.cat([size * torch.randn(NUMEL, generator=generator) for size in sizes])
    before = flat.clone()
    found = probe(
        Exchange(Identity()), choice, lambda name: fine if name == "edge" else choice.compressor, flat, PARAMS, 2
    )
    assert torch.equal(flat, before)
    assert found is not None
    return found.omega


@pytest.mark.parametrize("sizes", [(1.0, 0.0), (1e-3, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_a_parameter_that_the_step_does_not_use_counts_as_one_that_it_does(sizes: tuple[float, float]) -> None:
    """A head that every second step uses would be coded for nothing, if the step between them were believed."""
    assert omega(*sizes) == pytest.approx(omega(1.0, 1.0), rel=0.1)
    assert omega(1.0, 1.0) == pytest.approx(0.1331 / 2, rel=0.1)


def test_gradients_that_are_there_count_as_they_are() -> None:
    assert omega(1.0, 1e-3) < 1e-3 < omega(1e-3, 1.0)
