"""Memory ``dgc`` has the momentum of what travels dense, too: it is torch's own, whoever exchanges the gradients."""

from __future__ import annotations

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.momentum_jobs import DENSE, MEMORIES, WAYS, Weights, everything

Told = list[dict[tuple[str, ...], Weights]]


@pytest.fixture(scope="module")
def told() -> Told:
    return run_ranks(4, everything)


@pytest.mark.parametrize("form", MEMORIES)
@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize("way", WAYS)
def test_dense_parameters_and_a_warm_up_have_the_momentum_of_torch(way: str, dense: str, form: str, told: Told) -> None:
    for rank in told:
        pairs = zip(rank[way, dense, form], rank["torch", form], told[0][way, dense, form], strict=True)
        for ours, theirs, first in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
            assert torch.equal(ours, first)
