"""A loss that calls the last layer chunk by chunk, whose gradients are reduced before those of its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.fsdp_module_group_jobs import CHUNKS, SETTINGS, STEPS, closed, flat, replicas
from tests.integrations.newer import NEWER_FSDP
from tests.once import once

pytestmark = NEWER_FSDP


@once
def told() -> list[dict[str, Any]]:
    return run_ranks(2, flat)


@pytest.mark.parametrize("setting", SETTINGS)
def test_uncompressed_it_is_fsdp_alone(setting: str) -> None:
    for result in told():
        case = result[setting]
        for mine, theirs in zip(case["none"], case["alone"], strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in result["reference"])
        close = {"rtol": 0, "atol": 2e-2 if setting == "bfloat16" else 1e-6}
        for name, wanted in result["reference"].items():
            torch.testing.assert_close(case["none"][0][name], wanted, **close)


@pytest.mark.parametrize("setting", SETTINGS)
def test_nothing_of_what_is_kept_back_is_lost(setting: str) -> None:
    """The outputs of all steps and the residual add up to those of FSDP alone in as many steps."""
    for result in told():
        case = result[setting]
        assert set(case["topk, waits"]) == set(result["reference"])
        for name, waits in case["topk, waits"].items():
            came = sum(step[name] for step in case["topk"])
            left = waits[: came.numel()].view(came.shape)
            wanted = sum(step[name] for step in case["alone"])
            torch.testing.assert_close(came + left, wanted, rtol=0, atol=1e-5)
            assert not torch.allclose(came, wanted, atol=1e-5) or float(wanted.abs().max()) < 1e-5


def test_a_layer_that_is_reduced_again_begins_a_step() -> None:
    for result in told():
        steps = {setting: result[setting]["none, steps"] for setting in SETTINGS}
        assert steps == {"once": STEPS, "each chunk": STEPS * CHUNKS, "bfloat16": STEPS}


def test_replicas() -> None:
    for result in run_ranks(2, replicas):
        for mine, theirs in zip(result["none"], result["alone"], strict=True):
            for name, wanted in theirs.items():
                torch.testing.assert_close(mine[name], wanted, rtol=1e-5, atol=1e-7)


def test_another_state_after_one_that_was_closed() -> None:
    for same in run_ranks(2, closed):
        assert all(same)
        assert len(same) > STEPS
