"""Another number of ranks under each framework: the mean update that waits is kept."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from tests.frameworks.resize_jobs import everything

WAYS = ("accelerate", "trainer", "lightning")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(3, everything, str(tmp_path_factory.mktemp("resize")), timeout=800.0)


@pytest.mark.parametrize("way", WAYS)
def test_three_ranks_save_and_two_go_on_with_the_mean_of_their_residuals(way: str, told: list[dict[str, Any]]) -> None:
    saved = torch.stack([each["saved"][way]["waits"] for each in told]).mean(0)
    loaded = [each["loaded"][way] for each in told[:2]]
    assert torch.equal(loaded[0]["waits"], loaded[1]["waits"])
    assert float(saved.norm()) > 0
    assert float((loaded[0]["waits"] - saved).norm()) <= 1e-6 * float(saved.norm())
    assert loaded[0]["digest"] == loaded[1]["digest"] != told[0]["saved"][way]["digest"]


@pytest.mark.parametrize("way", ["trainer", "lightning"])
def test_it_must_be_said(way: str, told: list[dict[str, Any]]) -> None:
    for each in told[:2]:
        assert re.search(r"world of the state must be 2, as the group's, got 3; on_resize=", each["refused"][way])


CALLS = {
    "accelerate": ("compress", (None, torch.nn.Linear(1, 1)), {}),
    "transformers": ("GradwireTrainerCallback", (None, "topk", None), {"options": {}}),
    "lightning": ("GradwireCallback", (), {}),
}


@pytest.mark.parametrize("adapter", CALLS)
def test_a_misspelt_treatment_is_refused_before_anything_is_trained(adapter: str) -> None:
    """At the first resume it would be too late, days later."""
    name, given, options = CALLS[adapter]
    call = getattr(importlib.import_module(f"gradwire.frontends.adapters.{adapter}"), name)
    with pytest.raises(ConfigError, match="on_resize must be 'error', 'reshard' or 'reset', got 'reshrad'"):
        call(*given, on_resize="reshrad", **options)
