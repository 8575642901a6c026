"""Methods under another default dtype, as scripts set it that build a model in bfloat16: they compute in float32."""

import pytest
import torch

from gradwire import registry
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.policy import Policy
from gradwire.testing.inputs import gaussian

PARAMS = [("w", (96, 64)), ("v", (64, 48)), ("kernel", (16, 8, 3, 3)), ("bias", (64,))]
NUMEL = sum(torch.Size(shape).numel() for _, shape in PARAMS)
GRADS = [gaussian(NUMEL, seed=seed) for seed in range(3)]


def steps(name: str) -> torch.Tensor:
    exchange = Exchange(registry.build("compressors", name), policy=Policy(min_numel=0))
    means = []
    for grad in GRADS:
        flat = grad.clone()
        exchange.begin_step()
        exchange.run(flat, PARAMS)
        means.append(flat)
    return torch.cat(means)


@pytest.mark.parametrize("name", registry.names("compressors"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_makes_no_difference(name: str, dtype: torch.dtype) -> None:
    wanted = steps(name)
    torch.set_default_dtype(dtype)
    try:
        found = steps(name)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, wanted)
