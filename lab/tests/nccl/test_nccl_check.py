"""The check of NCCL, rehearsed: it is whole, goes on where it ended, and says in one line what it cannot do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.errors import ConfigError
from gradwire_lab.nccl import check, shaped
from gradwire_lab.nccl.batch import compare_trainings, find_rows
from gradwire_lab.nccl.check import NcclReport, check_nccl, lines, main, read_ranks
from gradwire_lab.nccl.link_speed import SpeedCell, measure_cells
from gradwire_lab.nccl.messages import OPERATIONS, TINY, case_of
from gradwire_lab.nccl.rows_file import Row, RowsFile, is_wrong
from gradwire_lab.nccl.trainings import Trained, Training, difference, first_tier, strategies_of, train
from gradwire_lab.nccl.way import REHEARSED, RankPlace, Way, run_joined
from gradwire_lab.netlab import NetlabError

pytestmark = pytest.mark.timeout(600)
root = pytest.mark.skipif(os.geteuid() != 0, reason="links need root")
NOWHERE = Way("nowhere", "gloo", "cpu", {"GLOO_SOCKET_IFNAME": "nonesuch"})
"""Ranks that cannot be connected."""


def test_it_runs_from_beginning_to_end_and_a_second_call_goes_on(tmp_path: Path) -> None:
    file, said = tmp_path / "nccl.jsonl", list[str]()
    report = check_nccl(file, ranks=(2,), minutes=8, rehearse=True, few=True, note=said.append)
    assert report.broken == []
    # Without root there are no links, and all else is there.
    assert all("no link could be shaped" in text for text in report.left)
    if os.geteuid() == 0:
        assert report.left == []
    assert [text.partition(":")[0] for text in said] == ["messages", "right", "streams", "speed"]
    cases = {row["case"] for row in report.rows}
    assert cases >= {case_of(operation, size) for operation in OPERATIONS for size in TINY}
    assert cases >= {each.case for each in check.all_trainings(few=True) if 2 in each.ranks}
    assert {"host waits, twobit", "memory", "a rank is killed", "graph", "sanitizer"} <= cases
    shown, link = lines(report), "100mbit" if os.geteuid() == 0 else "none"
    assert shown[0].startswith("rehearsed over Gloo on the CPU; ")
    assert any(line.startswith(f"gpt2, {link}, auto: ") and " times DDP (" in line for line in shown)
    if os.geteuid() == 0:
        assert "auto, until it has switched" in cases
        assert shown[-1] == "holds"

    # The same file, without its last row: that row comes again, and no other is measured twice.
    text = file.read_text()
    kept, last = text.splitlines()[:-1], report.rows[-1]
    file.write_text("\n".join(kept) + "\n")
    again = check_nccl(file, ranks=(2,), minutes=8, rehearse=True, few=True)
    assert file.read_text().splitlines()[: len(kept)] == kept
    assert [row["case"] for row in again.rows] == [row["case"] for row in report.rows]
    assert again.rows[-1]["case"] == last["case"]


def test_when_the_time_is_over_what_was_left_out_is_named(tmp_path: Path) -> None:
    report = check_nccl(tmp_path / "nccl.jsonl", ranks=(2,), minutes=0.01, rehearse=True, few=True)
    assert report.exit_code == 3
    assert any(text.startswith("right, 2 ranks: ") and text.endswith("the time was over") for text in report.left)
    assert lines(report)[-1] == "holds so far: another call with the same file goes on with what was left out"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gradwire: a GPU and a build of torch with NCCL are needed, and torch finds none here")


def test_ranks_that_cannot_be_connected_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "REHEARSED", NOWHERE)
    file = tmp_path / "nccl.jsonl"
    assert main(["--rehearse", "--minutes", "1", "--json", str(file)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gradwire: NCCL connects no two ranks on this GPU: nowhere: rank ")
    (row,) = RowsFile(file).rows
    assert row["case"] == "the way"
    assert "nonesuch" in row["refused"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "3"], "--ranks must be 2, 4 or 2,4, got '3'"),
        (["--minutes", "0"], "minutes must be a number > 0, got 0.0"),
        (["--json", "{folder}/other.jsonl"], "no row of gradwire check nccl: name another file"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.jsonl").write_text('{"kind": "auto"}\n')
    assert main(["--rehearse", *(word.format(folder=tmp_path) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_numbers_of_ranks_are_read() -> None:
    assert read_ranks("4, 2") == (2, 4)
    with pytest.raises(ConfigError, match="--ranks must be"):
        read_ranks("")


def some_die(rank: int, device: str, case: str) -> Row:
    assert device == "cpu"
    if case == "dies" and rank == 1:
        os._exit(11)
    if case == "raises":
        raise RuntimeError("an illegal memory access")
    dist.barrier()
    return {"difference": None}


def test_a_rank_that_dies_costs_its_case_alone(tmp_path: Path) -> None:
    file, deadline = RowsFile(tmp_path / "rows.jsonl"), time.monotonic() + 120
    cases = ["first", "dies", "raises", "last"]
    assert find_rows(file, "part", REHEARSED, 2, some_die, cases, deadline=deadline, patience=20.0) == []
    rows = {row["case"]: row for row in file.rows}
    assert list(rows) == cases
    assert [case for case, row in rows.items() if is_wrong(row)] == ["dies", "raises"]
    assert rows["raises"]["error"] == "rank 0: RuntimeError: an illegal memory access"


def test_cases_for_which_there_is_no_time_are_returned(tmp_path: Path) -> None:
    file = RowsFile(tmp_path / "rows.jsonl")
    assert find_rows(file, "part", REHEARSED, 2, some_die, ["first"], deadline=time.monotonic() - 1) == ["first"]
    assert file.rows == []


def test_a_training_whose_twin_over_gloo_had_no_time_is_returned(tmp_path: Path) -> None:
    file, trainings = RowsFile(tmp_path / "rows.jsonl"), check.all_trainings(few=True)[:4]
    for seconds in (0.0, 2.0, 60.0):
        deadline = time.monotonic() + seconds
        left = compare_trainings(file, "right", REHEARSED, 2, trainings, deadline=deadline)
        known = [row["case"] for row in file.rows]
        assert sorted(left + known) == sorted(each.case for each in trainings)
    assert left == []


def test_a_row_is_known_by_part_case_ranks_and_way(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"part": "right", "case": "ddp", "ranks": 2, "way": "hostid", "speedup": float("inf")}
    RowsFile(path).append(row)
    RowsFile(path).append({"where": {"gpu": "H200"}})
    file = RowsFile(path)
    assert file.has("right", "ddp", 2, "hostid")
    assert not file.has("right", "ddp", 4, "hostid")
    assert not file.has("right", "ddp", 2, "rehearsed")
    assert [each["speedup"] for each in file.rows] == [None]


WANTED = Trained([4.0, 3.0], ["a", "b"], "w")


@pytest.mark.parametrize(
    ("exact", "found", "wholes", "said"),
    [
        (True, WANTED, ["w", "w"], None),
        (True, Trained([4.0, 3.0], ["a", "c"], "w"), ["w", "w"], "other bits than over Gloo on the CPU from step 2 on"),
        (False, Trained([4.0, 3.05], ["x", "y"], "w"), ["w", "w"], None),
        (False, Trained([4.0, 3.2], ["x", "y"], "w"), ["w", "w"], "losses differ from those over Gloo on the CPU by "),
        (False, WANTED, ["w", "v"], "the ranks ended with different weights"),
    ],
)
def test_a_difference_is_found(exact: bool, found: Trained, wholes: list[str], said: str | None) -> None:
    told = difference(Training("case", "ddp", exact=exact), found, WANTED, wholes)
    assert (told is None) if said is None else (told is not None and told.startswith(said))


def exact_sums(rank: int) -> tuple[list[str], list[str]]:
    """The digests of a training without compression, and of one whose ranks are numbered the other way round."""
    straight = train(rank, "cpu", Training("straight", "ddp", "none")).bits
    world = dist.get_world_size()
    torch.manual_seed(0)
    return straight, train(world - 1 - rank, "cpu", Training("reversed", "ddp", "none")).bits


def test_sums_are_exact_in_any_order_of_the_ranks() -> None:
    """Means of the same gradients, added up in another order, have the same bits."""
    for straight, other in run_joined(REHEARSED, 4, exact_sums, timeout=120.0):
        assert straight == other


def test_every_method_of_the_first_tier_has_a_training_by_each_strategy() -> None:
    cases = {each.case for each in check.all_trainings()}
    assert {f"ddp {name}, {strategy}" for name in first_tier() for strategy in strategies_of(name)} <= cases


def seconds_of(rank: int) -> float:
    """Seconds in which a rank sends 2 MB and gets as many."""
    tensor = torch.zeros(500_000)
    dist.all_reduce(tensor)
    begun = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - begun


def refused(*_: Any) -> Any:
    raise NetlabError("ip link add failed: RTNETLINK answers: Operation not supported")


@root
def test_without_bridges_the_loopback_of_one_namespace_is_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaped, "Netlab", refused)
    with shaped.shaped(2, "20mbit") as network:
        assert (network.how, network.refusal) == ("loopback", "")
        slow = min(run_joined(REHEARSED, 2, seconds_of, timeout=60.0, place=network.place))
    # 2 MB at 20 Mbit/s take 0.8 s, and a bucket of 128 kB passes at once.
    assert slow > 0.5


def test_a_kernel_without_namespaces_is_one_line_and_costs_the_links_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shaped, "Netlab", refused)
    monkeypatch.setattr(shaped, "_shared_loopback", refused)
    with shaped.shaped(2, "1gbit") as network:
        assert network.place == RankPlace()
        assert network.refusal.startswith("no link could be shaped: ip link add failed: ")
    file, cells = RowsFile(tmp_path / "rows.jsonl"), [SpeedCell("resnet50", "1gbit", ("ddp",))]
    left = measure_cells(file, REHEARSED, 2, cells, deadline=time.monotonic() + 60, small=True)
    assert left == [f"resnet50, 1gbit, ddp: {network.refusal}"]
    assert {(row["link"], row["case"]) for row in file.rows} >= {("none", "resnet50, none, ddp")}


def test_what_is_wrong_comes_before_what_is_missing() -> None:
    row = {"part": "right", "case": "ddp", "ranks": 2, "way": "hostid", "difference": "other bits"}
    report = NcclReport({"rehearsed": True, "machine": "here", "torch": "2"}, [row], ["speed: gpt2: the time was over"])
    assert report.exit_code == 1
    assert lines(report)[-1] == "WRONG: right: ddp, 2 ranks, hostid: other bits"
