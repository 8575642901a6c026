"""The check measures what it compares: a step over a lab's links, beside a prediction that never saw it."""

from __future__ import annotations

import pytest

from gradwire.bench.advise.check import DENSE, Setting, compare
from gradwire.bench.netlab import Link
from gradwire.compressors.twobit import TwoBit
from tests.bench.netlab.conftest import here


@pytest.mark.timeout(600)
def test_a_prediction_and_a_step_for_every_combination() -> None:
    reason = here()
    if reason:
        pytest.skip(reason)
    setting = Setting(["resnet20"], [2], [Link.parse("10mbit")], {"twobit": TwoBit()}, steps=3)
    told: list[str] = []
    dense, twobit = compare(setting, told.append)
    assert setting.combinations == 2
    assert (dense.method, twobit.method, dense.model, dense.link) == (DENSE, "twobit", "resnet20", "10mbit")
    assert dense.step is not None
    assert twobit.step is not None
    # 1.08 MB at 10 Mbit/s: whatever the machine does besides, the link needs that long.
    assert dense.measured is not None
    assert min(dense.step.total, dense.measured) > 4 * 269_467 / 1.25e6
    assert dense.step.sent == pytest.approx(4 * 269_467)
    assert twobit.step.sent < dense.step.sent / 10
    assert [line.partition(" ")[0] for line in told] == ["resnet20,", "measuring"]
