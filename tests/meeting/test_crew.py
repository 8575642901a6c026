"""Ranks that are one worker of a meeting, on meshes of one and two dimensions, over real Gloo processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradwire.errors import ConfigError, GroupError
from gradwire.metrics import Metrics
from gradwire.optim.local._crew import ALONE, Crew
from gradwire.optim.local._islands import Island
from gradwire.optim.local.attendance import Attendance
from gradwire.optim.local.board import Board
from gradwire.optim.local.meeting import Meeting
from gradwire.testing.processes import run_ranks
from gradwire.transport.channel import Channel

pytestmark = pytest.mark.timeout(120)


def crew_of(mesh: DeviceMesh) -> Crew:
    model = fully_shard(nn.Linear(8, 8), mesh=mesh)
    island = Island(None)
    island.check(dict(model.named_parameters()))
    island.set_up(lambda: None, lambda: _Described(), {}, None, 1, 60.0)
    return island.crew


class _Described:
    """An exchange of which an island asks nothing but a description."""

    def describe(self, *_: Any, **facts: Any) -> str:
        return "{}"

    @property
    def channel(self) -> Any:
        return self

    rank, world = 0, 1


def said(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except (ConfigError, GroupError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def _asked(rank: int, shape: tuple[int, ...]) -> dict[str, Any]:
    if shape:
        names = ("replicate", "shard") if len(shape) == 2 else ("shard",)
        crew = crew_of(init_device_mesh("cpu", shape, mesh_dim_names=names))
    else:
        # A mesh whose first rank is the last of the group.
        crew = crew_of(DeviceMesh("cpu", [3, 1, 2, 0], mesh_dim_names=("shard",)))

    def fail() -> None:
        raise GroupError("nobody is there")

    def fail_here() -> str:
        if rank == 2:
            raise RuntimeError("no memory")
        return "well"

    return {
        "first": crew.first,
        "led": crew.lead(lambda: rank),
        "nested": crew.lead(lambda: crew.lead(lambda: rank)),
        "error": said(lambda: crew.lead(fail)),
        "together": said(lambda: crew.together(fail_here)),
        "anywhere": [crew.anywhere(rank == each) for each in range(-1, 4)],
        "total": crew.total(rank + 0.5),
        "alike": said(lambda: crew.compare("state", 7)),
        "differs": said(lambda: crew.compare("state", 7 + (rank == 1))),
        "place": crew.place,
    }


@pytest.mark.parametrize(
    ("shape", "first", "places"),
    [
        ((4,), 0, ["/0", "/1", "/2", "/3"]),
        ((2, 2), 0, ["/0.0", "/0.1", "/1.0", "/1.1"]),
        ((), 3, ["/3", "/1", "/2", "/0"]),
    ],
)
def test_all_hear_what_the_first_hears(shape: tuple[int, ...], first: int, places: list[str]) -> None:
    results = run_ranks(4, _asked, shape)
    for rank, told in enumerate(results):
        assert told["first"] == (rank == first)
        assert told["led"] == told["nested"] == first
        assert told["error"] == "GroupError: nobody is there"
        failed = "RuntimeError: no memory" if rank == 2 else "GroupError: another rank of this worker failed: its own"
        assert str(told["together"]).startswith(failed)
        assert told["anywhere"] == [False, True, True, True, True]
        assert told["total"] == 8.0
        assert told["alike"] is None
        differs = "ConfigError: state must be on all ranks of a worker that of the first, 7, got 8"
        assert str(told["differs"]).startswith(differs if rank == 1 else "GroupError: another rank of this worker")
    assert [told["place"] for told in results] == places


def _cut_off(rank: int) -> list[object]:
    """Rank 2 hears nothing along the first dimension, and rank 3 only what rank 2 tells it."""
    crew = crew_of(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    if rank == 2:
        line, _ = crew._lines[0]
        for name in ("share", "all_reduce"):
            setattr(line, name, partial(_lost, getattr(line, name)))
    return [said(lambda: crew.lead(lambda: "heard")), said(lambda: crew.anywhere(True))]


def _lost(call: Callable[..., object], *arguments: object) -> None:
    call(*arguments)
    raise GroupError("the line is down")


def test_a_rank_that_hears_nothing_tells_those_that_wait_for_it() -> None:
    found = run_ranks(4, _cut_off)
    assert found[:2] == [["heard", True]] * 2
    assert found[2] == ["GroupError: the line is down"] * 2
    assert found[3] == ["GroupError: the line is down", "GroupError: a rank of this worker does not answer"]


def _one_is_gone(rank: int, file: str) -> list[bytes] | None:
    """The payload of the second shard is taken down before it is read."""
    crew = crew_of(init_device_mesh("cpu", (2,), mesh_dim_names=("shard",)))
    attendance = Attendance(Meeting(dist.FileStore(file, 2), "0"), crew=crew)
    attendance.come(0)
    closed = attendance.hand_in(1, b"payload")
    if rank == 1:
        attendance.board.drop(f"payload/1/{attendance.token}/1", 7)
    return attendance.payloads(1, closed)


def test_payloads_that_one_shard_lacks_all_shards_fetch_anew(tmp_path: Path) -> None:
    assert run_ranks(2, _one_is_gone, str(tmp_path / "place")) == [None, None]


def test_no_rank_waits_for_a_note_that_others_take_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that goes between a look and the reading would be waited for until the store's deadline."""
    island = Crew([(Channel(None, Metrics()), 0)], (0,))
    store, read = dist.HashStore(), Board.read

    def reads(board: Board, name: str) -> object:
        assert not name.startswith("payload/"), f"{name} may go"
        return read(board, name)

    monkeypatch.setattr(Board, "read", reads)
    attendance = Attendance(Meeting(store, "0"), crew=island)
    assert attendance.come(0) is not None
    for t in range(1, 5):
        closed = attendance.hand_in(t, b"payload")
        assert attendance.payloads(t, closed) == [b"payload"]
    # Of the rounds that are over nothing hangs there.
    first = attendance.closed(1)
    assert attendance.payloads(1, first) is None
    assert attendance.board.look(f"payload/1/{attendance.token}/0") is None


def test_a_worker_of_one_rank_asks_nobody() -> None:
    assert ALONE.lead(lambda: 5) == 5
    assert ALONE.together(lambda: 6) == 6
    assert ALONE.total(7.5) == 7.5
    assert [ALONE.anywhere(so) for so in (True, False)] == [True, False]
    with torch.device("meta"):
        assert not ALONE.anywhere(False)
