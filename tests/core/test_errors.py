"""Error texts read as sentences."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradwire import helpers, schedules
from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.checkpoint import merge_states
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError, nearest
from gradwire.frontends.setup import trainable
from gradwire.memory.residual import Residual
from tests.cases import together

ONE = {"version": 1, "world": 2, "step": 7, "ranks": {}}

SAID: dict[str, tuple[Callable[[], object], str]] = {
    "nothing to merge": (lambda: merge_states([]), "states must be at least one, got none"),
    "other runs": (
        lambda: merge_states([ONE, {**ONE, "world": 3}]),
        "world of the states must be 2 in all of them, got 3",
    ),
    "a schedule": (lambda: schedules.linear(1.0, 0.0, 0), "linear.steps must be an integer >= 1, got 0"),
    "too few bytes": (
        lambda: helpers.unpack(torch.zeros(3, dtype=torch.uint8), 2, 99),
        "unpack.packed must be 25 uint8, got 3 torch.uint8",
    ),
    "a state that is none": (
        lambda: merge_states([3]),  # type: ignore[list-item]
        "state must be what state_dict() gave, with version, world, step and ranks, got 3",
    ),
    "a name where an object must be": (
        lambda: Exchange("topk"),  # type: ignore[arg-type]
        "compressor must be a compressor, which gradwire.compressor makes from a name, got 'topk'",
    ),
    "a list of codes": (lambda: helpers.pack([1], 2), "pack.codes must be a tensor, got [1]"),  # type: ignore[arg-type]
    "no payload": (
        lambda: TopK().decompress(None, (4,)),  # type: ignore[arg-type]
        "a payload must be a tensor, got NoneType",
    ),
    "no steps": (
        lambda: schedules.stages(3),  # type: ignore[arg-type]
        "stages.values must be a mapping from steps >= 0 to values, with one for step 0, got 3",
    ),
    "no start": (
        lambda: schedules.linear(None, 1.0, 5),  # type: ignore[arg-type]
        "linear.start must be a finite number, got None",
    ),
    "no step": (
        lambda: Exchange(TopK()).run(torch.zeros(4), [("a", (4,))]),
        "run must be called after begin_step, got a call before it",
    ),
    "nothing to train": (
        lambda: trainable(nn.ReLU()),
        "model must be a module with trainable parameters, got ReLU without any",
    ),
    "a class": (
        lambda: Exchange(TopK(), memory=Residual),  # type: ignore[arg-type]
        "memory must be a memory or its name, got <class 'gradwire.memory.residual.Residual'>, a class: write "
        "Residual(...), an object",
    ),
}


@together
@pytest.mark.parametrize("case", SAID)
def test_what_was_given_is_said_in_words(case: str) -> None:
    call, text = SAID[case]
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        call()


def test_the_nearest_name_begins_like_it_if_that_is_as_near() -> None:
    assert nearest("rate", ["strategy", "ratio", "seed"]).startswith("did you mean 'ratio'?")
    assert nearest("patio", ["period", "ratio"]).startswith("did you mean 'ratio'?")
    assert nearest("stategy", ["strategy", "start_after", "ratio"]).startswith("did you mean 'strategy'?")


def test_where_nothing_is_known_that_is_said() -> None:
    assert nearest("ratio", []) == "there is none"
