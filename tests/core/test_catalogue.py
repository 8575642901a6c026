"""The rows behind ``gradwire methods`` and the docs."""

from __future__ import annotations

from typing import get_args

import pytest

from gradwire import registry
from gradwire.catalogue import declares_traffic, describe, methods, state_bytes
from gradwire.compressors.base import Family
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.ternary.twobit import TwoBit
from tests.strategies.methods import NonZero


def test_every_registered_method_has_a_row_that_makes_sense() -> None:
    rows = methods()
    assert [row["name"] for row in rows] == list(registry.names("compressors"))
    for row in rows:
        assert row["family"] in get_args(Family), row["name"]
        assert 0 < row["bits_per_element"] <= 32.1, row["name"]
        assert 0 <= row["state_bytes_per_element"] < 40, row["name"]
        assert row["memory"] in registry.names("memory")
        assert set(row["aggregation"]) <= set(registry.names("strategies"))
        assert row["reference"], row["name"]


def test_a_row_follows_from_what_is_declared() -> None:
    row = describe(QSGD(bits=8, block=512))
    assert (row["nature"], row["feedback"], row["memory"]) == ("random", "optional", "none")
    assert row["bits_per_element"] == 8.0625
    assert row["aggregation"] == ["allgather", "two_phase"]
    assert not row["bits_depend_on_data"]
    assert describe(PowerSGD(rank=2))["family"] == "low rank"


def test_the_bits_of_a_variable_size_are_those_that_travel() -> None:
    everything, little = describe(NonZero(least=0.0)), describe(NonZero(least=1.0))
    assert not declares_traffic(NonZero())
    assert everything["bits_depend_on_data"]
    assert everything["bits_per_element"] == pytest.approx(64, rel=1e-3)
    assert little["bits_per_element"] == pytest.approx(64 * 0.3173, rel=0.02)


def test_state_is_the_methods_own_and_its_memory() -> None:
    assert state_bytes(TwoBit(), (1000,)) == 4
    assert state_bytes(QSGD(), (1000,)) == 0
    assert state_bytes(PowerSGD(rank=2), (64, 64)) == 4 + 4 * 2 * 64 / 64**2
