"""The check of a GPU ends in its time, isolates what ends badly, and says what it left out."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments import gpu_check
from gradwire_lab.experiments.gpu_check import GpuReport, PartReport, check_gpu, lines, writer

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
WHERE = {"interpreter": True, "machine": "here", "torch": "2", "triton": "3"}


def good(_: float, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"operation": "good", "variant": str(number), "difference": None}


def dies(_: float) -> Iterator[dict[str, Any]]:
    yield {"operation": "first", "difference": None}
    os._exit(11)


def fails(_: float) -> Iterator[dict[str, Any]]:
    yield {"operation": "first", "difference": "codes differs"}
    raise RuntimeError("an illegal memory access")


def hangs(_: float) -> Iterator[dict[str, Any]]:
    yield {"operation": "first", "difference": None}
    time.sleep(1000)


def variable(_: float) -> Iterator[dict[str, Any]]:
    yield {"operation": os.environ.get("TRITON_INTERPRET", "none"), "difference": None}


def named(_: float, name: str) -> Iterator[dict[str, Any]]:
    if name == "dies":
        time.sleep(0.5)
        os._exit(11)
    for variant in "ab":
        yield {"operation": name, "variant": variant, "difference": None}
        time.sleep(1.0 if name == "slow" else 0.0)


def endless(_: float) -> Iterator[dict[str, Any]]:
    while True:
        yield {"operation": "x", "difference": None}


def filled(function: Any, *arguments: Any, seconds: float = 100.0, interpreted: bool = False) -> PartReport:
    return dealt(function, [arguments], seconds=seconds, interpreted=interpreted)


def dealt(function: Any, work: Any, *, seconds: float = 100.0, interpreted: bool = False) -> PartReport:
    part = PartReport("part")
    report = GpuReport(WHERE, [part])
    deadline = time.monotonic() + seconds
    gpu_check._fill(part, function, work, deadline, report, lambda _: None, interpreted=interpreted)
    return part


def test_rows_come_from_a_process_of_their_own() -> None:
    part = filled(good, 3)
    assert [row["variant"] for row in part.rows] == ["0", "1", "2"]
    assert (part.error, part.left_out, part.wrong) == ("", "", [])


def test_several_processes_share_a_part() -> None:
    part = dealt(named, [("x",), ("y",), ("z",)])
    told = [(row["operation"], row["variant"]) for row in part.rows]
    assert sorted(told) == [(name, variant) for name in "xyz" for variant in "ab"]
    assert (part.error, part.left_out) == ("", "")


def test_one_of_several_that_dies_takes_nothing_from_the_others() -> None:
    part = dealt(named, [("slow",), ("dies",)])
    assert [row["operation"] for row in part.rows] == ["slow", "slow"]
    assert part.error == "its process died with exit code 11"


def test_whoever_has_always_another_row_is_ended_too() -> None:
    before, begun = set(multiprocessing.active_children()), time.monotonic()
    part = dealt(endless, [(), ()], seconds=3.0)
    assert part.left_out.startswith("what comes after these ")
    assert time.monotonic() - begun < 20.0
    assert set(multiprocessing.active_children()) <= before


def stuck(rank: int, device: str, names: list[str], deadline: float) -> dict[str, Any]:
    time.sleep(1000)
    return {}


def crashed(rank: int, device: str, names: list[str], deadline: float) -> dict[str, Any]:
    if rank == 0:
        raise RuntimeError("an illegal memory access")
    return stuck(rank, device, names, deadline)


def late(rank: int, device: str, names: list[str], deadline: float) -> dict[str, Any]:
    """The ranks on the GPU go on nearly to the end of the part, so that those on the CPU find no time."""
    time.sleep(max(0.0, deadline - time.monotonic()) + 1.2)
    return {name: [] for name in names}


@pytest.mark.parametrize(
    ("ranks", "error", "broken"),
    [
        (stuck, "", "nothing was compared: what comes after these 0 rows: the time of this part was over"),
        (late, "", "nothing was compared: what comes after these 0 rows: the time of this part was over"),
        (crashed, "an illegal memory access", "an illegal memory access"),
    ],
)
def test_ranks_that_compare_nothing_are_named(
    ranks: Any, error: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow ranks cannot be told from those that wait for each other, but neither hold; one that fails says why."""
    monkeypatch.setattr(gpu_check, "_train", ranks)
    part = filled(gpu_check._ddp, "gloo", 2, ["none"], seconds=6.0)
    assert part.rows == []
    assert error in part.error
    (told,) = GpuReport(WHERE, [part]).broken
    assert broken in told


def test_a_process_that_dies_ends_its_part_alone() -> None:
    part = filled(dies)
    assert len(part.rows) == 1
    assert part.error == "its process died with exit code 11"


def test_an_error_is_told_with_the_rows_before_it() -> None:
    part = filled(fails)
    assert "an illegal memory access" in part.error
    assert part.wrong == [{"operation": "first", "difference": "codes differs"}]
    shown = lines(GpuReport(WHERE, [part]))
    assert "part             1 rows, 1 wrong, 0 s; FAILED: RuntimeError: an illegal memory access" in shown
    assert "WRONG: part: operation first: codes differs" in shown


def test_a_part_that_compared_nothing_does_not_hold() -> None:
    part = filled(good, 0)
    assert GpuReport(WHERE, [part]).broken == ["part: nothing was compared"]


def test_the_methods_that_matter_most_are_timed_at_all_sizes_before_the_others() -> None:
    rows = list(gpu_check._times(time.monotonic() + 100, "meta", ["bf16", "randomk", "twobit"], (64, 4096)))
    named = [(row["method"], row["size"]) for row in rows]
    main = [(name, size) for size in (64, 4096) for name in ("torch_bf16", "bf16", "twobit")]
    assert named == [*main, ("randomk", 64), ("randomk", 4096)]


def test_what_takes_too_long_is_ended_and_said() -> None:
    """It would sleep for longer than a test may take; the deadline is there before it has begun."""
    before = set(multiprocessing.active_children())
    part = filled(hangs, seconds=0.0)
    assert part.rows == []
    assert part.left_out == "what comes after these 0 rows: the time of this part was over"
    assert GpuReport(WHERE, [part]).broken == [f"part: nothing was compared: {part.left_out}"]
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("interpreted", "seen"), [(True, "1"), (False, "none")])
def test_triton_interprets_in_the_process_alone(interpreted: bool, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "elsewhere")
    assert filled(variable, interpreted=interpreted).rows[0]["operation"] == seen
    assert os.environ["TRITON_INTERPRET"] == "elsewhere"


def test_models_on_two_ranks_are_compared_step_by_step() -> None:
    """Without a GPU both sides are the CPU: what is tried is that every method runs, and that equal is equal."""
    rows = list(gpu_check._ddp(time.monotonic() + 200, "gloo", 2, ["none", "twobit", "topk", "powersgd", "strom"]))
    assert [row["method"] for row in rows] == ["none", "twobit", "topk", "powersgd", "strom"]
    assert all(row["difference"] is None and row["ranks"] == 2 for row in rows)


def test_methods_for_which_the_time_was_over_are_named() -> None:
    done = gpu_check.run_ranks(1, gpu_check._train, "cpu", ["none"], time.monotonic() - 1)
    assert done == [{}]


def test_a_difference_between_devices_is_found() -> None:
    want = [np.linspace(-1, 1, 10, dtype=np.float32) for _ in range(2)]
    got = [each.copy() for each in want]
    assert gpu_check._apart("twobit", got, want) is None
    got[1][3] += 1e-7
    assert gpu_check._apart("powersgd", got, want) is None
    said = gpu_check._apart("twobit", got, want)
    assert said is not None
    assert said.startswith("step 2: 1 of 10 elements differ from those on the CPU, by ")
    got[1][3] = np.nan
    assert gpu_check._apart("powersgd", got, want) is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="a GPU is needed, and torch finds none here; --interpreter compares"):
        check_gpu()


@pytest.mark.parametrize(
    ("given", "said"),
    [({"minutes": 0.0}, "minutes must be a number > 0, got 0.0"), ({"methods": ["towbit"]}, "did you mean 'twobit'")],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_gpu(interpreter=True, **given)


@needs_triton
@pytest.mark.timeout(400)
def test_the_file_is_whole_after_each_part(tmp_path: Path) -> None:
    file, seen = tmp_path / "gpu.json", []
    keep = writer(file)

    def note(report: GpuReport) -> None:
        keep(report)
        seen.append(list(json.loads(file.read_text())["parts"]))

    report = check_gpu(interpreter=True, methods=["twobit"], note=note)
    assert report.broken == []
    assert seen[-1] == ["operations", "methods"]
    assert ["operations"] in seen
    assert json.loads(file.read_text()) == report.as_dict()
    shown = lines(report)
    assert shown[0].startswith("Triton's interpreter; ")
    assert shown[-1] == "holds"


def test_the_table_has_what_was_timed() -> None:
    rows = [
        {"method": name, "size": 1 << 20, "operations": 3, "launches": 4, "bytes_per_element": 20.0, "ratio": 1.5}
        | {"seconds": seconds, "copy_seconds": 0.001}
        for name, seconds in (("torch_bf16", 0.002), ("twobit", 0.004))
    ]
    part = PartReport("times", [*rows, {"method": "topk", "size": 1 << 28, "left_out": "no time"}], seconds=2.0)
    shown = lines(GpuReport(WHERE | {"interpreter": False, "gpu": "H100", "cuda": "13"}, [part]))
    assert "torch_bf16      2^20           3         4           20.0  2.000    1.000   1.50       1.00" in shown
    assert "twobit          2^20           3         4           20.0  4.000    1.000   1.50       2.00" in shown
    assert "left out: times: topk, 268435456: no time" in shown
