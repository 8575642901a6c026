"""Fragments over a real meeting place, with workers that are killed, stopped, slow, come again and come late."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import gradwire
from gradwire.errors import ConfigError
from gradwire.testing.processes import run_ranks
from tests.meeting.workers import Worker, together
from tests.optim.jobs import digest, forward, model_of, parameters

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Worker]

EXACT: dict[str, Any] = {"kind": "diloco", "compressor": "none", "lr": 1.0, "momentum": 0.0}
STREAMED: dict[str, Any] = {**EXACT, "every": 6, "fragments": 2, "delay": 2}
SPARSE: dict[str, Any] = {**STREAMED, "compressor": "topk", "ratio": 0.1}

CASES: list[dict[str, Any]] = [
    {"compressor": "topk", "ratio": 0.1, "momentum": 0.5, "every": 6, "fragments": 3, "delay": 2},
    {"compressor": "qsgd", "bits": 4, "memory": "residual", "every": 6, "fragments": 3, "delay": 1},
    {"compressor": "none", "every": 4, "fragments": 1, "delay": 4},
    {"compressor": "efsignsgd", "every": 5, "fragments": 2, "delay": 0},
]


def _both(rank: int) -> list[bool]:
    """True for each case in which every step ends alike at a meeting and in a group."""
    shared: list[Any] = [None]
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        shared = [server.port]
    dist.broadcast_object_list(shared)
    told = []
    for i, options in enumerate(CASES):
        meeting = gradwire.Meeting(f"127.0.0.1:{shared[0]}/{i}", str(rank), workers=2)
        runs = [_run(rank, options, each) for each in (meeting, None)]
        told.append(runs[0] == runs[1] and len(set(runs[0])) == len(runs[0]))
    dist.barrier()
    return told


def _run(rank: int, options: dict[str, Any], meeting: gradwire.Meeting | None) -> list[str]:
    model = model_of(seed=3 + rank)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.5)
    optimizer = gradwire.diloco(inner, meeting=meeting, min_numel=0, **options)
    optimizer.join()
    seen = []
    for step in range(18):
        forward(model, optimizer, step, rank).backward()
        optimizer.step()
        seen.append(parameters(model) + digest(optimizer.agreed.data))
    optimizer.synchronize()
    optimizer.leave()
    return [*seen, parameters(model) + str(optimizer.in_step)]


def test_fragments_of_two_at_a_meeting_are_those_of_a_group_bit_for_bit() -> None:
    assert run_ranks(2, _both, timeout=120) == [[True] * len(CASES)] * 2


def identity(accounts: list[dict[str, Tensor]], applied: Tensor) -> None:
    """The applied updates, residuals and parameters are together all that was made."""
    made = torch.stack([each["made"] for each in accounts]).sum(0)
    waits = torch.stack([each["waits"] for each in accounts]).sum(0)
    assert float((applied + waits - made).norm()) <= 1e-6 * float(made.norm())
    assert float(applied.norm()) > 0.1 * float(made.norm())


def counted(place: str, name: str) -> list[int]:
    """The rounds in which something of a worker counts."""
    board, t, found = gradwire.Meeting(place, "looks on").open(), 1, []
    while (note := board.read(f"closed/{t}")) is not None:
        found += [t] * (note["came"].get(name, [0])[0] > 0)
        t += 1
    return found


def attended(observer: Worker, others: list[Worker]) -> None:
    """Let the observer go on while others do what they were told: who misses many rounds gets only their sum."""
    while not all(each.pipe.poll(0.01) for each in others):
        observer.ask("stream", 1, 5)
    for each in others:
        each.answer()


def settled(observer: Worker, others: list[Worker], more: list[dict[str, Tensor]] = []) -> None:  # noqa: B006
    """Let the others leave and the observer see their last rounds, and compare the account."""
    attended(observer, [each.tell("leave") for each in others])
    observer.ask("meet")
    accounts = [*(each.ask("account") for each in [observer, *others]), *more]
    identity(accounts, accounts[0]["applied"])


def started(worker: Start, place: str, names: str, options: dict[str, Any], **meeting: Any) -> list[Worker]:
    workers = [worker(place, name, {"workers": len(names), **meeting}, **options) for name in names]
    assert together(workers, "join") == [0] * len(names)
    workers[0].ask("watch")
    return workers


def streamed(workers: list[Worker], steps: int, seed: int, pauses: list[float] | None = None) -> list[dict[str, Any]]:
    for i, each in enumerate(workers):
        each.tell("stream", steps, 10 * seed + i, pauses[i] if pauses else 0.01)
    return [each.answer() for each in workers]


@pytest.mark.parametrize("options", [STREAMED, SPARSE])
def test_a_worker_that_is_five_times_slower_holds_up_nobody_and_loses_nothing(
    place: str, worker: Start, options: dict[str, Any]
) -> None:
    workers = started(worker, place, "012", options, deadline=60.0, quorum=2)
    for each, (steps, pause) in zip(workers, [(60, 0.04), (60, 0.04), (12, 0.2)], strict=True):
        each.tell("stream", steps, 7 + steps, pause)
    told = [each.answer() for each in workers]
    # Nobody has waited for the deadline, nor for the slow one: it makes a step in the time of five.
    assert all(each["waited_seconds"] < 1.5 for each in told[:2])
    assert told[0]["exchanges"] >= 18
    assert told[2]["exchanges"] > 12
    # It has sent both fragments.
    assert {t % 2 for t in counted(place, "2")} == {0, 1}
    settled(workers[0], workers[1:])


def test_a_worker_that_is_cut_off_goes_on_where_the_others_are(place: str, worker: Start) -> None:
    workers = started(worker, place, "012", SPARSE, deadline=60.0, quorum=2)
    streamed(workers, 5, seed=1)
    workers[2].tell("stream", 6, 99, 0.05)
    time.sleep(0.12)
    workers[2].signal(signal.SIGSTOP)
    # More rounds than hang at the place.
    told = streamed(workers[:2], 30, seed=2)
    assert all(each["workers"] == ["0", "1"] for each in told)
    workers[2].signal(signal.SIGCONT)
    while not workers[2].pipe.poll(0.5):
        streamed(workers[:2], 6, seed=3)
    workers[2].answer()
    last = max(counted(place, "0"))
    attended(workers[0], [each.tell("stream", 18, 40 + i, 0.02) for i, each in enumerate(workers[1:])])
    assert all(max(counted(place, name)) > last for name in "012")
    settled(workers[0], workers[1:])


@pytest.mark.parametrize("options", [STREAMED, SPARSE])
def test_a_worker_that_is_killed_with_a_fragment_under_way_comes_again_and_a_new_one_comes(
    place: str, worker: Start, options: dict[str, Any]
) -> None:
    meeting = {"deadline": 60.0, "quorum": 2}
    workers = started(worker, place, "012", options, **meeting)
    # A fragment leaves in the third step of six, and lands in the fifth.
    streamed(workers, 10, seed=1)
    assert workers[2].ask("flights") == 1
    before, saved = workers[2].ask("account"), workers[2].ask("save")
    workers[2].signal(signal.SIGKILL)
    streamed(workers[:2], 8, seed=2)
    again = worker(place, "2", {"workers": 3, **meeting}, **options)
    again.ask("load", saved)
    again.tell("join")
    new = worker(place, "3", {"workers": 3, **meeting}, **options)
    new.tell("join")
    while not (again.pipe.poll(0.1) and new.pipe.poll(0.1)):
        streamed(workers[:2], 3, seed=3)
    assert again.answer() >= 3
    assert new.answer() >= 3
    four = [*workers[:2], again, new]
    last = max(counted(place, "0"))
    attended(four[0], [each.tell("stream", 24, 40 + i, 0.02) for i, each in enumerate(four[1:])])
    assert all(max(counted(place, name)) > last for name in "0123")
    again_made = {"made": before["made"], "waits": 0 * before["made"]}
    settled(workers[0], [workers[1], again, new], [again_made])


def test_a_worker_that_is_killed_after_it_has_handed_in_drops_what_was_sent(place: str, worker: Start) -> None:
    workers = started(worker, place, "01", STREAMED, deadline=10.0)
    # The first state that a worker can come again with is that after a round.
    streamed(workers, 8, seed=1)
    saved, before = workers[1].ask("save"), workers[1].ask("account")
    # In the next step the first fragment leaves; worker 0 does not come, so the round is open.
    workers[1].ask("stream", 1, 55)
    board = gradwire.Meeting(place, "looks on").open()
    while not any(board.entries("arrivals/3")):
        time.sleep(0.02)
    sent = workers[1].ask("account")
    workers[1].signal(signal.SIGKILL)
    again = worker(place, "1", {"workers": 2, "deadline": 10.0}, **STREAMED)
    again.ask("load", saved)
    again.tell("join")
    assert again.answer() == 1
    told = streamed([workers[0], again], 9, seed=2)
    assert told[0]["workers"] == ["0", "1"]
    # Of the step that the checkpoint has not, only the fragment that left counts.
    first = slice(0, 40 * 40 + 40)
    extra = torch.zeros_like(before["made"])
    extra[first] = (sent["made"] - before["made"])[first]
    gone = {"made": before["made"] + extra, "waits": torch.zeros_like(extra)}
    settled(workers[0], [again], [gone])


def test_what_fragments_at_a_meeting_cannot_be() -> None:
    model = model_of()
    for options, text in (
        ({"fragments": 3, "delay": 3}, "DiLoCo.delay must be at most 2, the steps between two fragments"),
        ({"fragments": 3, "mix": 0.5}, "DiLoCo.mix must be None with a meeting, got 0.5"),
    ):
        inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
        meeting = gradwire.Meeting(dist.HashStore(), "0")
        with pytest.raises(ConfigError, match=text):
            gradwire.diloco(inner, "none", every=8, meeting=meeting, **options)  # type: ignore[arg-type]
