"""Rounds over a real meeting place, with workers that are killed, stopped, come again and come late."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire
from gradwire.optim.local.attendance import KEPT
from tests.meeting.workers import Worker, a_round, starter, together

pytestmark = pytest.mark.timeout(300)

SPARSE = {"compressor": "topk", "ratio": 0.1}
SHORT = {"deadline": 5.0, "timeout": 60.0}

Start = Callable[..., Worker]


def identity(sums: list[dict[str, Tensor]], applied: Tensor) -> None:
    """The applied updates and the residuals are together all the ways gone."""
    gone = torch.stack([each["ways"] for each in sums]).sum(0)
    waits = torch.stack([each["waits"] for each in sums]).sum(0)
    assert float((applied + waits - gone).norm()) <= 1e-6 * float(gone.norm())
    assert float(waits.norm()) > 0.01 * float(gone.norm())


class Applied:
    """The sum of what the rounds applied, from what one worker agreed on after each."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.total = worker, torch.zeros(())
        self.before = worker.ask("sums")["agreed"]

    def count(self, workers: int) -> None:
        after = self.worker.ask("sums")["agreed"]
        self.total = self.total + workers * (self.before - after)
        self.before = after


@pytest.fixture(scope="module", autouse=True)
def running(address: str) -> Iterator[dict[str, Future[None]]]:
    """Tests that wait for a deadline, at the same time and while the other tests run."""
    with ThreadPoolExecutor() as threads:
        yield {each.__name__: threads.submit(with_workers, each, address) for each in (killed, stopped)}


def with_workers(what: Callable[[str, Start], None], address: str) -> None:
    with starter() as start:
        what(f"{address}/{what.__name__}", start)


def killed(place: str, worker: Start) -> None:
    meeting = {**SHORT, "workers": 3}
    first = [worker(place, name, meeting, **SPARSE) for name in "012"]
    assert together(first, "join") == [0, 0, 0]
    applied = Applied(first[0])
    told = a_round(first, seed=1)
    assert [each["workers"] for each in told] == [["0", "1", "2"]] * 3
    applied.count(3)
    first[2].ask("local", 7)
    saved, before, way = first[2].ask("save"), first[2].ask("sums"), first[2].ask("way")
    first[2].signal(signal.SIGKILL)
    told = a_round(first[:2], seed=2)
    assert [each["workers"] for each in told] == [["0", "1"]] * 2
    applied.count(2)
    # Nobody waits for it a second time.
    assert gradwire.Meeting(place, "looks on").open().read("closed/2")["roster"] == ["0", "1"]
    assert {each["round"] for each in a_round(first[:2], seed=3)} == {3}
    applied.count(2)
    again = worker(place, "2", meeting, **SPARSE)
    again.ask("load", saved)
    assert torch.equal(again.ask("sums")["waits"], before["waits"])
    assert again.ask("join") == 3
    # Its residual is what it was, and the steps that it made before it was killed wait with it.
    assert torch.allclose(again.ask("sums")["waits"], before["waits"] + way, rtol=0, atol=1e-6)
    assert float(way.norm()) > 0.1
    new = worker(place, "3", meeting, **SPARSE)
    new.tell("join")
    three = [*first[:2], again]
    told = a_round(three, seed=4)
    # The new one may have come too late to be given the state after this round; then it is after the next.
    applied.count(3)
    while not new.pipe.poll(2):
        told = a_round(three, seed=5)
        applied.count(3)
    assert new.answer() == told[0]["round"]
    assert {each["parameters"] for each in told} == {new.ask("now")["parameters"]}
    told = a_round([*three, new], seed=6)
    applied.count(4)
    assert [each["workers"] for each in told] == [["0", "1", "2", "3"]] * 4
    assert len({each["parameters"] for each in told}) == 1
    sums = [each.ask("sums") for each in [*three, new]]
    sums[2]["ways"] += before["ways"]
    identity(sums, applied.total)


def stopped(place: str, worker: Start) -> None:
    workers = [worker(place, name, {**SHORT, "workers": 3}, **SPARSE) for name in "012"]
    together(workers, "join")
    applied = Applied(workers[0])
    a_round(workers, seed=1)
    applied.count(3)
    for missed in (1, 4):
        late = held_up(workers, missed, applied)
        assert late["left_behind"] == (1 if missed == 1 else 2)
        assert late["late_norm"] > 0
        assert late["parameters"] == workers[0].ask("now")["parameters"]
        told = a_round(workers, seed=60 + missed)
        applied.count(3)
        assert [each["workers"] for each in told] == [["0", "1", "2"]] * 3
        assert len({each["parameters"] for each in told}) == 1
        assert told[2]["late_norm"] == 0
    identity([each.ask("sums") for each in workers], applied.total)


def held_up(workers: list[Worker], missed: int, applied: Applied) -> dict[str, Any]:
    """Stop the last worker before it exchanges, for so many rounds of the others; what it says when it goes on."""
    slow = workers[-1]
    slow.ask("local", 50 + missed)
    slow.signal(signal.SIGSTOP)
    slow.tell("exchange")
    for i in range(missed):
        assert [each["workers"] for each in a_round(workers[:-1], seed=10 * missed + i)] == [["0", "1"]] * 2
        applied.count(2)
    slow.signal(signal.SIGCONT)
    while not slow.pipe.poll(2):
        # More than hangs at the place: it waits for the end of a round, and for the state after it.
        assert missed > KEPT
        a_round(workers[:-1], seed=77)
        applied.count(2)
    return slow.answer()  # type: ignore[no-any-return]


def test_nothing_of_a_way_that_is_not_finite_and_nobody_waits_for_one_who_left(place: str, worker: Start) -> None:
    workers = [worker(place, name, {"workers": 2, "deadline": 1000.0}, **SPARSE) for name in "01"]
    together(workers, "join")
    a_round(workers, seed=1)
    before = workers[1].ask("sums")["waits"]
    together(workers, "local", 3)
    workers[1].ask("spoil")
    told = together(workers, "exchange")
    assert [each["workers"] for each in told] == [["0"], ["0"]]
    assert [each["nonfinite_steps"] for each in told] == [0, 1]
    assert torch.equal(workers[1].ask("sums")["waits"], before)
    assert told[0]["parameters"] == told[1]["parameters"]
    together(workers, "local", 4)
    workers[0].tell("exchange")
    workers[1].ask("leave")
    assert workers[0].answer()["workers"] == ["0"]
    assert a_round(workers[:1], seed=2)[0]["round"] == 4


def test_a_meeting_goes_on_at_a_new_place_bit_for_bit(places: Iterator[str], worker: Start) -> None:
    momentum = {"kind": "diloco", "compressor": "qsgd", "bits": 4, "memory": "residual", "momentum": 0.5}
    old, new = next(places), next(places)
    workers = [worker(old, name, {"workers": 2}, **momentum) for name in "01"]
    together(workers, "join")
    a_round(workers, seed=1)
    workers[0].ask("local", 5)
    others = [worker(new, name, {"workers": 2}, **momentum) for name in "01"]
    for one, other in zip(workers, others, strict=True):
        other.ask("load", one.ask("save"))
    assert together(others, "join") == [1, 1]
    for group in (workers, others):
        a_round(group, seed=2)
    told = [a_round(group, seed=3) for group in (workers, others)]
    assert [each["round"] for each in told[1]] == [3, 3]
    assert len({each["parameters"] for group in told for each in group}) == 1
    sums = [[each.ask("sums")["waits"] for each in group] for group in (workers, others)]
    assert all(torch.equal(one, other) for one, other in zip(*sums, strict=True))


@pytest.mark.parametrize(
    ("compressor", "params", "at_least"), [("efsignsgd", {}, 31 * 100), ("topk", {"ratio": 0.01}, 66 * 100)]
)
def test_with_a_hundred_local_steps_thousands_of_times_fewer_bytes(
    place: str, compressor: str, params: dict[str, Any], at_least: int
) -> None:
    model = torch.nn.Linear(512, 512, bias=False)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    meeting = gradwire.Meeting(place, "0")
    optimizer = gradwire.local_sgd(inner, compressor, every=100, meeting=meeting, **params)
    optimizer.join()
    gradient = torch.randn(512, 512)
    for _ in range(200):
        model.weight.grad = gradient.clone()
        optimizer.step()
    told = optimizer.metrics()
    assert (told["steps"], told["rounds"]) == (200, 2)
    assert told["dense_bytes"] == 2 * 4 * 512 * 512
    every_step = 200 * 4 * 512 * 512
    assert at_least <= every_step / told["bytes_sent"] <= 1.05 * at_least
    optimizer.leave()


def test_a_killed_worker_is_left_behind_and_comes_again_and_a_new_one_comes(running: dict[str, Future[None]]) -> None:
    running["killed"].result()


def test_a_stopped_worker_is_left_behind_and_what_it_has_to_say_returns(running: dict[str, Future[None]]) -> None:
    running["stopped"].result()
