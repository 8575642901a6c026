"""Methods in other modes of torch, such as another default dtype of a script that builds a model in bfloat16: they
compute the same, and what was made in a mode serves outside of it, too."""

import pytest
import torch

from gradwire import registry
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.testing.inputs import gaussian
from tests.cases import together
from tests.modes import MODES
from tests.once import once

PARAMS = [("w", (96, 64)), ("v", (64, 48)), ("kernel", (16, 8, 3, 3)), ("bias", (64,))]
NUMEL = sum(torch.Size(shape).numel() for _, shape in PARAMS)
GRADS = [gaussian(NUMEL, seed=seed) for seed in range(3)]


@once
def steps(name: str, mode: str) -> torch.Tensor:
    """Means of three steps; the exchange is made, and makes its first and its last step, in the mode."""
    means = []
    with MODES[mode]():
        exchange = Exchange(registry.build("compressors", name), policy=Policy(min_numel=0))
    for grad, inside in zip(GRADS, (mode, "none", mode), strict=True):
        with MODES[inside]():
            flat = grad.clone()
            exchange.begin_step()
            exchange.run(flat, PARAMS)
        means.append(flat.clone())
    return torch.cat(means)


@together
@pytest.mark.parametrize("name", registry.names("compressors"))
@pytest.mark.parametrize("mode", ["inference", "float64", "bfloat16"])
def test_a_mode_of_the_caller_makes_no_difference(name: str, mode: str) -> None:
    assert torch.equal(steps(name, mode), steps(name, "none"))
