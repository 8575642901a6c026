"""Nothing is sent twice: states from before rounds in which their worker counted, and from other meetings."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.errors import ConfigError, GroupError
from gradwire.optim.local.attendance import KEPT, Attendance

pytestmark = pytest.mark.timeout(120)


def alone(place: Any, name: str = "0", **meeting: Any) -> Any:
    torch.manual_seed(sum(name.encode()))
    inner = torch.optim.SGD(nn.Linear(16, 16, bias=False).parameters(), lr=0.1)
    at = gradwire.Meeting(place, name, **{"deadline": 20.0, "timeout": 20.0, **meeting})
    return gradwire.local_sgd(inner, "topk", ratio=0.1, every=2, min_numel=0, meeting=at)


def step(optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        for param in optimizer.params:
            param.grad = torch.randn(param.shape)
        optimizer.step()


def saved(optimizer: Any) -> dict[str, Any]:
    return copy.deepcopy({"model": optimizer.params[0].detach(), "optimizer": optimizer.state_dict()})


def load(optimizer: Any, state: dict[str, Any]) -> Any:
    with torch.no_grad():
        optimizer.params[0].copy_(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return optimizer


def waits(optimizer: Any) -> torch.Tensor:
    kept = optimizer.exchange.residuals.worker.get("residual", {})
    return sum(kept.values(), torch.zeros(())) + optimizer.rounds.late


def in_threads(*work: Any) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("steps_of_the_next", [0, 1])
def test_what_was_sent_after_a_state_was_saved_is_not_sent_again(
    steps_of_the_next: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = dist.HashStore()
    first = alone(place)
    first.join()
    step(first)
    step(first, steps_of_the_next)
    state = saved(first)
    step(first, 4 - steps_of_the_next)
    again = load(alone(place), state)
    assert float(waits(again).norm()) > 0
    again.join()
    assert again.round == first.round == 3
    assert float(waits(again).norm()) == 0
    assert torch.equal(again.params[0], first.params[0])
    assert "worker 0 forgets the residual that it came with: in round 2 an earlier process" in caplog.text


def test_a_state_of_the_last_round_is_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    place = dist.HashStore()
    first = alone(place)
    first.join()
    step(first, 5)
    state = saved(first)
    again = load(alone(place), state)
    again.join()
    assert torch.equal(waits(again), waits(first))
    assert float(waits(again).norm()) > 0
    step(again, 1)
    assert again.round == 3
    assert not caplog.records


def test_one_that_missed_more_than_hangs_there_asks_the_notes() -> None:
    place = dist.HashStore()
    two = [alone(place, name, workers=2) for name in "01"]
    in_threads(*(each.join for each in two))
    in_threads(*(lambda each=each: step(each) for each in two))
    state = saved(two[1])
    in_threads(*(lambda each=each: step(each) for each in two))
    two[1].leave()
    for _ in range(KEPT + 1):
        step(two[0])
    again = load(alone(place, "1"), state)
    coming = threading.Thread(target=again.join)
    coming.start()
    while coming.is_alive():
        step(two[0])
        coming.join(0.2)
        two[0].rounds.attendance.meeting.__dict__["deadline"] = 1.0
    assert float(waits(again).norm()) == 0


@pytest.mark.parametrize("steps_of_the_next", [0, 1])
def test_a_payload_of_the_process_before_that_is_still_handed_in(steps_of_the_next: int) -> None:
    place = dist.HashStore()
    two = [alone(place, name, workers=2) for name in "01"]
    in_threads(*(each.join for each in two))
    in_threads(*(lambda each=each: step(each) for each in two))
    step(two[1], steps_of_the_next)
    state = saved(two[1])
    dying = threading.Thread(target=step, args=(two[1], 2 - steps_of_the_next))
    dying.start()
    while not two[0].rounds.there._arrived(2):
        threading.Event().wait(0.01)
    again = load(alone(place, "1", workers=2), state)
    again.join()
    assert float(waits(again).norm()) > 0
    before = again.params[0].detach().clone()
    step(two[0])
    dying.join()
    grads = torch.zeros(())
    for _ in range(2 - steps_of_the_next):
        step(again, 1)
        grads = grads + again.params[0].grad
    assert (again.round, again.metrics()["left_behind"]) == (2, 1)
    # The steps that it has made itself were not sent.
    assert torch.allclose(waits(again), 0.1 * grads.view(-1), rtol=0, atol=1e-6)
    assert not torch.equal(again.params[0], before)
    assert torch.equal(again.params[0], two[0].params[0])


@pytest.mark.parametrize(("opens", "comes"), [(3, 1), (1, 3), (1, 1)])
def test_one_that_comes_late_to_a_new_place_from_another_round(opens: int, comes: int) -> None:
    old, new = dist.HashStore(), dist.HashStore()
    first, states = alone(old), {}
    first.join()
    for i in range(1, 4):
        step(first)
        states[i] = saved(first)
    one = load(alone(new, "0"), states[opens])
    one.join()
    # Rounds of the new place that have the numbers of old ones and lead elsewhere.
    step(one, 4)
    other = load(alone(new, "1"), states[comes])
    coming = threading.Thread(target=other.join)
    coming.start()
    while coming.is_alive():
        step(one)
        coming.join(0.2)
        one.rounds.attendance.meeting.__dict__["deadline"] = 1.0
    while other.round < one.round:
        # A round has ended when it had come, and before it took part.
        step(other)
    in_threads(lambda: step(one), lambda: step(other))
    assert other.round == one.round
    assert torch.equal(one.params[0], other.params[0])


def test_an_older_state_at_a_new_place_keeps_nothing_that_may_have_been_sent(caplog: pytest.LogCaptureFixture) -> None:
    old, new = dist.HashStore(), dist.HashStore()
    first = alone(old)
    first.join()
    step(first)
    early = saved(first)
    step(first)
    two = [load(alone(new, name, workers=2), state) for name, state in (("0", saved(first)), ("1", early))]
    in_threads(*(each.join for each in two))
    assert [each.round for each in two] == [2, 2]
    assert torch.equal(two[0].params[0], two[1].params[0])
    assert [float(waits(each).norm()) > 0 for each in two] == [True, False]
    assert (
        "it has the state after round 1 of another meeting, and this one began with that after round 2" in caplog.text
    )


def test_a_worker_killed_while_it_announces_itself_hides_nobody_behind_it() -> None:
    place = dist.HashStore()
    first = alone(place)
    first.join()
    board = gradwire.Meeting(place, "killed").open()
    # What it did before it was killed: it took a number, and hung nothing there.
    board.store.add("joins/count", 1)
    new = alone(place, "1")
    coming = threading.Thread(target=new.join)
    coming.start()
    while len(board.entries("joins")) < 3:
        threading.Event().wait(0.01)
    step(first)
    coming.join()
    assert new.round == 1
    assert torch.equal(new.params[0], first.params[0])


def test_a_round_that_ends_with_an_error_has_sent_nothing() -> None:
    optimizer = alone(dist.HashStore())
    optimizer.join()
    step(optimizer)
    before = waits(optimizer).clone()
    optimizer.rounds.there.board.put("token/0", "of another process")
    with pytest.raises(GroupError, match="another process came as worker '0'"):
        step(optimizer)
    assert torch.equal(waits(optimizer), before)
    assert float(before.norm()) > 0
    with pytest.raises(ConfigError, match=r"join\(\) must be called"):
        step(optimizer, 1)
    optimizer.join()
    step(optimizer, 1)
    assert optimizer.round == 2


def test_what_was_late_when_a_call_failed_is_late_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = dist.HashStore()
    two = [alone(place, name, workers=2) for name in "01"]
    in_threads(*(each.join for each in two))
    in_threads(*(lambda each=each: step(each) for each in two))
    two[0].rounds.meeting.__dict__["deadline"] = 0.2
    step(two[0])
    expected = waits(two[1]).clone()
    step(two[1], 1)
    expected += 0.1 * two[1].params[0].grad.view(-1)

    def failing(*_: object) -> None:
        raise GroupError("nobody is there")

    with monkeypatch.context() as patched:
        patched.setattr(Attendance, "payloads", lambda *_: None)
        patched.setattr(Attendance, "fetch", failing)
        with pytest.raises(GroupError, match="nobody is there"):
            step(two[1], 1)
    expected += 0.1 * two[1].params[0].grad.view(-1)
    two[1].join()
    assert two[1].round == 2
    assert torch.equal(two[1].params[0], two[0].params[0])
    assert torch.allclose(waits(two[1]), expected, rtol=0, atol=1e-6)
