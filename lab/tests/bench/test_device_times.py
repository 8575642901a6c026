"""The cost of a method on a device, where there is one, and the logic of it where there is none."""

from __future__ import annotations

import pytest
import torch

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire_lab.bench import device_times
from gradwire_lab.bench.device_times import HOOK, Copy, time_rows


def built(*names: str) -> list[Compressor]:
    return [registry.build("compressors", name) for name in names]


def test_operations_and_bytes_are_those_of_an_accelerator() -> None:
    rows = list(time_rows("meta", built("bf16", "twobit"), (1 << 20, 1 << 28)))
    assert [(row["method"], row["size"]) for row in rows] == [
        (name, 1 << k) for k in (20, 28) for name in (HOOK, "bf16", "twobit")
    ]
    assert all(row["synchronisations"] == 0 and "seconds" not in row for row in rows)
    small, large = ({row["method"]: row for row in rows if row["size"] == 1 << k} for k in (20, 28))
    assert small[HOOK]["operations"] == 3
    for name, row in large.items():
        assert row["operations"] == small[name]["operations"]
        assert row["bytes_per_element"] == pytest.approx(small[name]["bytes_per_element"], rel=1e-3)


def test_a_step_takes_turns_with_a_copy_of_its_bytes() -> None:
    for row in time_rows("cpu", built("twobit"), (5000,)):
        assert row["rounds"] >= 5
        assert row["seconds_low"] <= row["seconds"] <= row["seconds_high"]
        assert row["ratio"] == pytest.approx(row["seconds"] / row["copy_seconds"])


@pytest.mark.parametrize("nbytes", [8, 8000, 10_000_001])
def test_a_copy_moves_as_many_bytes(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_times, "MOST_COPIED", 1 << 20)
    copy = Copy(nbytes, "cpu")
    assert copy.source.numel() <= 1 << 20
    assert 2 * copy.source.numel() * copy.times == pytest.approx(nbytes, rel=1e-5)
    copy.source.fill_(7)
    copy()
    assert torch.equal(copy.source, copy.target)


def test_a_row_for_which_no_time_is_left_says_so() -> None:
    left = iter([100.0, 100.0, 0.0, 1e-9])
    rows = list(time_rows("cpu", built("twobit"), (64, 1 << 20), seconds_left=lambda: next(left)))
    assert ["left_out" in row for row in rows] == [False, False, True, True]
    assert "would take about" in rows[3]["left_out"]


def test_what_fails_is_a_row_and_not_the_end() -> None:
    rows = list(time_rows("meta", built("strom", "bf16"), (4096,)))
    assert "error" in rows[1]
    assert "operations" in rows[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu() -> None:
    rows = list(time_rows("cuda", built("bf16", "twobit"), (1 << 20,)))
    for row in rows:
        assert row["launches"] >= 1
        assert row["ratio"] > 0
    assert all(row["waits"] is None for row in rows[1:])
