"""The decisions of ``auto`` in scenarios with a simulated clock are those that were frozen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.auto import frozen_decisions as frozen

WANTED = json.loads(frozen.FILE.read_text(encoding="utf-8"))

NUMBER = re.compile(r"\d+\.\d+|\d+")


def flat(value: Any) -> list[Any]:
    """All words and numbers of a value in their order, those inside of texts among them."""
    if isinstance(value, dict):
        return [part for key, each in value.items() for part in (key, *flat(each))]
    if isinstance(value, list):
        return [len(value), *(part for each in value for part in flat(each))]
    if isinstance(value, str):
        return [NUMBER.sub("#", value), *(float(each) for each in NUMBER.findall(value))]
    return [value]


def test_every_scenario_is_frozen() -> None:
    assert list(WANTED) == list(frozen.SCENARIOS)


@pytest.mark.parametrize("name", frozen.SCENARIOS)
def test_decisions_are_those_that_were_frozen(name: str) -> None:
    """Numbers may differ in the fourth digit, because each processor rounds gradients in its own order."""
    found, wanted = frozen.decided(name), WANTED[name]
    assert found["steps"] == wanted["steps"]
    assert found["decisions"] == wanted["decisions"]
    for one, other in zip(flat(found), flat(wanted), strict=True):
        assert one == (pytest.approx(other, rel=1e-2, abs=1e-9) if isinstance(other, float) else other)
