"""Errors of what cannot work, at once or at a deadline."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.errors import ConfigError, GradwireError, GroupError, WireError
from gradwire.optim.local.attendance import Attendance
from gradwire.optim.local.board import PIECE, Board
from gradwire.optim.local.closed import Closed
from tests.compressors.methods import Vote


def alone(meeting: gradwire.Meeting, compressor: Any = "topk", **options: Any) -> Any:
    model = nn.Linear(16, 16, bias=False)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    return gradwire.local_sgd(inner, compressor, every=2, min_numel=0, meeting=meeting, **options)


def step(optimizer: Any) -> None:
    for param in optimizer.params:
        param.grad = torch.ones_like(param)
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"place": "10.0.0.1"}, "Meeting.place must be HOST:PORT, HOST:PORT/NAME, or a store of torch.distributed"),
        ({"place": "host:70000"}, "got 'host:70000'"),
        ({"name": ""}, "Meeting.name must be 1 to 64 printable characters without '/', got ''"),
        ({"name": "a/b"}, "got 'a/b'"),
        ({"workers": 0}, "Meeting.workers must be an integer >= 1, got 0"),
        ({"deadline": 0.0}, "Meeting.deadline must be seconds in (0, 1e+06], got 0.0"),
        ({"timeout": float("inf")}, "Meeting.timeout must be seconds in (0, 1e+06], got inf"),
    ],
)
def test_a_meeting_refuses(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gradwire.Meeting(**{"place": "10.0.0.1:7100", "name": "0", **options})
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("compressor", "options", "text"),
    [
        ("powersgd", {}, "compressor must be a method of one message with a meeting, not one averaged in rounds"),
        ("topk", {"memory": "ef21"}, "memory must be one that keeps nothing of the mean with a meeting, got 'ef21'"),
        (Vote(), {}, "compressor must be a method whose payloads are averaged one by one with a meeting, got Adapted("),
        ("topk", {"strategy": "two_phase"}, "strategy must be left out with a meeting"),
        ("topk", {"ratio": 2}, "TopK.ratio must be in (0, 1], got 2"),
    ],
)
def test_what_a_meeting_cannot_carry(compressor: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        alone(gradwire.Meeting(dist.HashStore(), "0"), compressor, **options)
    assert text in str(refused.value)


def test_a_step_before_joining() -> None:
    optimizer = alone(gradwire.Meeting(dist.HashStore(), "0"))
    step(optimizer)
    with pytest.raises(ConfigError, match=r"join\(\) must be called before the first step with a meeting"):
        step(optimizer)


def test_too_few_come(place: str) -> None:
    with pytest.raises(GroupError, match=r"1 of 3 workers came to the meeting at 127.0.0.1:.* within 0.2 s"):
        alone(gradwire.Meeting(place, "0", workers=3, timeout=0.2)).join()


def test_nobody_answers() -> None:
    with pytest.raises(GroupError, match=r"no meeting place answers at 127.0.0.1:9: start `gradwire meeting` there"):
        alone(gradwire.Meeting("127.0.0.1:9", "0", timeout=0.2)).join()


def test_another_configuration(place: str) -> None:
    alone(gradwire.Meeting(place, "0"), ratio=0.1).join()
    with pytest.raises(ConfigError, match=r"worker '1' must be configured as the meeting .*0\.1.*got .*0\.25"):
        alone(gradwire.Meeting(place, "1"), ratio=0.25).join()


def test_another_process_takes_the_name(place: str) -> None:
    first = alone(gradwire.Meeting(place, "0"))
    first.join()
    # The second needs the state after a round, and the first ends none any more.
    second = alone(gradwire.Meeting(place, "0", timeout=1.0))
    with pytest.raises(GroupError, match="waited 1 s for round 1 to end and for the state after it; in that round w"):
        second.join()
    step(first)
    with pytest.raises(GroupError, match="another process came as worker '0'"):
        step(first)


def test_one_that_comes_when_everybody_has_left_is_told_and_gets_the_state_when_somebody_came_again() -> None:
    place = dist.HashStore()
    first = alone(gradwire.Meeting(place, "0", deadline=60.0))
    first.join()
    step(first)
    step(first)
    first.leave()
    with pytest.raises(GroupError, match="everybody has left the meeting at HashStore after round 1, and nobody is th"):
        alone(gradwire.Meeting(place, "1", deadline=0.2, timeout=60.0)).join()
    new = alone(gradwire.Meeting(place, "2", deadline=60.0, timeout=60.0))
    coming = threading.Thread(target=new.join)
    coming.start()
    board = gradwire.Meeting(place, "looks on").open()
    while len(board.entries("joins")) < 4:
        threading.Event().wait(0.01)
    first.join()
    step(first)
    step(first)
    coming.join()
    assert new.round == first.round == 2
    assert torch.equal(new.params[0], first.params[0])


def test_a_round_that_ends_while_somebody_comes_is_the_one_whose_state_he_gets() -> None:
    place = dist.HashStore()
    first = alone(gradwire.Meeting(place, "0"))
    first.join()
    new = Attendance(gradwire.Meeting(place, "1", timeout=1.0))
    assert new.come(0) is None
    step(first)
    step(first)
    # The round after would wait for him, and he for its end.
    t, state = new.fetch(4 * 16 * 16)
    assert t == 1
    assert state == first.agreed.data.numpy().tobytes()


def test_the_place_is_gone() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    optimizer = alone(gradwire.Meeting(f"127.0.0.1:{server.port}", "0"))
    optimizer.join()
    del server
    step(optimizer)
    with pytest.raises(GroupError, match=r"the meeting place 127.0.0.1:[0-9]+ does not answer"):
        step(optimizer)


@pytest.mark.parametrize("data", [b"", b"\x01" * 200])
def test_bytes_of_a_peer_that_are_no_payload(place: str, data: bytes) -> None:
    """A worker that hands in what is no payload: the others refuse it, and do not crash."""
    optimizer = alone(gradwire.Meeting(place, "0", workers=2))
    intruder = Attendance(gradwire.Meeting(place, "1", workers=2))
    coming = threading.Thread(target=intruder.come, args=(0,))
    coming.start()
    optimizer.join()
    coming.join()
    step(optimizer)
    handing = threading.Thread(target=intruder.hand_in, args=(1, data or b"\x00" * 8))
    handing.start()
    with pytest.raises(GradwireError) as refused:
        step(optimizer)
    handing.join()
    assert isinstance(refused.value, WireError)


@pytest.mark.parametrize("late", [False, True])
def test_whoever_opened_the_meeting_dies_before_the_note_of_its_first_round(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = dist.HashStore()
    opens, comes = (Attendance(gradwire.Meeting(place, name, workers=2, timeout=60.0)) for name in "01")
    put_up = opens.board.first

    def killed(name: str, note: Any) -> Any:
        if name.startswith("closed/"):
            raise ProcessLookupError
        return put_up(name, note)

    monkeypatch.setattr(opens.board, "first", killed)
    came: list[Any] = []
    coming = threading.Thread(target=lambda: came.append(comes.come(0)))
    if late:
        comes.announce(0)
    else:
        coming.start()
        while not any(comes.board.entries("joins")):
            threading.Event().wait(0.01)
    with pytest.raises(ProcessLookupError):
        opens.come(0)
    if late:
        coming.start()
    coming.join()
    assert (came[0] is None) == late
    assert comes.newest() == 0
    assert comes.closed(0).roster == ("0", "1")


def test_the_others_open_the_meeting_where_the_last_to_come_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = dist.HashStore()
    last, waits = (Attendance(gradwire.Meeting(place, name, workers=2, deadline=0.1, timeout=60.0)) for name in "01")

    def killed(_: Any) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(last, "_open", killed)
    coming = threading.Thread(target=waits.come, args=(0,))
    coming.start()
    while not any(waits.board.entries("joins")):
        threading.Event().wait(0.01)
    with pytest.raises(ProcessLookupError):
        last.come(0)
    coming.join()
    assert waits.closed(0).roster == ("0", "1")


def test_a_state_may_take_longer_than_a_deadline() -> None:
    place = dist.HashStore()
    speaks, waits = (Attendance(gradwire.Meeting(place, name, deadline=0.05)) for name in "01")
    slow = threading.Timer(0.5, speaks.publish, args=(3, b"state"))
    slow.start()
    assert waits.state(3, 5, 60.0) == b"state"
    slow.join()
    # Nobody puts it up: it ends where the state would be gone, or the time is.
    waits.board.put("newest", 6)
    assert waits.state(4, 5, 60.0) is None
    assert waits.state(5, 5, 0.1) is None


@pytest.mark.parametrize("note", [None, [], {"came": {}}, {"came": {"0": 3}, "roster": [], "need": [], "seen": 0}])
def test_a_note_that_is_none(note: Any) -> None:
    with pytest.raises(WireError, match="a closed round is a note with came, roster, need and seen"):
        Closed.read(note)


class Fleeting:
    """A store at which somebody takes down whatever another has looked for, before he comes to read it."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.store.set_timeout(timedelta(seconds=1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def check(self, keys: list[str]) -> bool:
        there = self.store.check(keys)
        for key in keys:
            self.store.delete_key(key)
        return there


def test_what_is_taken_down_between_a_look_and_the_reading_holds_up_nobody() -> None:
    board = Board(dist.HashStore(), "here")
    board.store = Fleeting()  # type: ignore[assignment]
    assert board.take("a", 4) is None
    for data in (b"data", b"?", b"??", b"-"):
        board.hang("a", data)
        assert board.take("a", len(data)) == data


def test_bytes_hang_in_pieces_until_they_are_taken_down() -> None:
    board = Board(dist.HashStore(), "here")
    data = bytes(range(256)) * (PIECE // 256) + b"end"
    board.hang("a", data)
    assert board.take("a", len(data)) == data
    board.drop("a", len(data))
    assert board.take("a", len(data)) is None
    assert board.first("note", 1) == 1
    assert board.first("note", 2) == 1
    assert [board.append("list", each) for each in "xyz"] == [1, 2, 3]
    assert board.entries("list", after=1) == ["y", "z"]
    board.drop_list("list")
    assert board.entries("list") == []
