"""Weights of workers at a meeting: by the steps that their changes contain, or by the tokens."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.errors import ConfigError, WireError
from gradwire.optim.local.closed import Closed
from gradwire.testing.processes import run_ranks
from tests.meeting.workers import Worker, together

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Worker]


def alone(store: dist.Store, kind: str = "local_sgd", name: str = "0", workers: int = 1, **options: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    meeting = gradwire.Meeting(store, name, workers=workers)
    return getattr(gradwire, kind)(inner, "none", **{"every": 3, "meeting": meeting, **options})


def step(optimizer: Any, tokens: float = 0.0, gradient: float = 1.0) -> None:
    for param in optimizer.params:
        param.grad = torch.full_like(param, gradient)
    if tokens:
        optimizer.add_tokens(tokens)
    optimizer.step()


def saved(optimizer: Any) -> tuple[Any, list[torch.Tensor]]:
    return copy.deepcopy((optimizer.state_dict(), [param.detach() for param in optimizer.params]))


def loaded(store: dist.Store, state: tuple[Any, list[torch.Tensor]], **options: Any) -> Any:
    """An optimizer of a new process, with the state and the parameters of another one."""
    optimizer = alone(store, **options)
    with torch.no_grad():
        for param, value in zip(optimizer.params, state[1], strict=True):
            param.copy_(value)
    optimizer.load_state_dict(state[0])
    return optimizer


def weights(store: dist.Store, rounds: int) -> list[float]:
    """The weight of worker 0 in each of the first rounds."""
    board = gradwire.Meeting(store, "looks on").open()
    return [Closed.read(board.read(f"closed/{t}")).came["0"].weight for t in range(1, rounds + 1)]


def test_workers_count_by_their_steps(place: str, worker: Start) -> None:
    options = {"compressor": "none", "weigh": "steps"}
    workers = [worker(place, name, {"workers": 2}, **options) for name in "01"]
    assert together(workers, "join") == [0, 0]
    agreed = workers[0].ask("sums")["agreed"]
    # Each makes two steps at a time.
    for each, times in zip(workers, (1, 3), strict=True):
        for seed in range(times):
            each.ask("local", seed)
    few, many = (each.ask("way") for each in workers)
    told = together(workers, "exchange")
    assert [each["shares"] for each in told] == [[0.25, 0.75]] * 2
    assert len({each["parameters"] for each in told}) == 1
    moved = agreed - workers[0].ask("sums")["agreed"]
    torch.testing.assert_close(moved, 0.25 * few + 0.75 * many, rtol=0, atol=1e-6)


def test_a_worker_that_was_late_counts_by_all_that_goes_with_its_next_round(place: str, worker: Start) -> None:
    options = {"compressor": "none", "weigh": "steps"}
    workers = [worker(place, name, {"workers": 2, "deadline": 1.0}, **options) for name in "01"]
    assert together(workers, "join") == [0, 0]
    for each in workers:
        each.ask("local", 1)
    # The round closes without worker 1, at the deadline.
    assert workers[0].ask("exchange")["shares"] == [1.0]
    assert workers[1].ask("exchange")["left_behind"] == 1
    for each in workers:
        each.ask("local", 2)
    told = together(workers, "exchange")
    assert [each["shares"] for each in told] == [[2 / 6, 4 / 6]] * 2


def test_tokens_of_each_step_add_up_until_its_round() -> None:
    store = dist.HashStore()
    optimizer = alone(store, weigh="tokens")
    optimizer.join()
    for tokens in (10, 20, 30, 0.1, 0.1):
        step(optimizer, tokens)
    optimizer.add_tokens(0.2)
    step(optimizer, 0.3)
    assert weights(store, 2) == pytest.approx([60.0, 0.7])
    optimizer.leave()


def test_a_step_that_is_left_out_has_no_weight() -> None:
    store = dist.HashStore()
    optimizer = alone(store, weigh="steps")
    optimizer.join()
    for gradient in (1.0, float("nan"), 1.0):
        step(optimizer, gradient=gradient)
    optimizer.synchronize()
    # The second round has no step, and a residual may still be sent: it is of such steps as before.
    assert weights(store, 2) == [2.0, 2.0]
    optimizer.leave()


def test_fragments_have_weights_of_their_own_which_checkpoints_keep() -> None:
    store = dist.HashStore()
    options = {"kind": "diloco", "every": 4, "fragments": 2, "delay": 1, "weigh": "steps"}
    optimizer = alone(store, **options)
    optimizer.join()
    # The first fragment leaves in steps 2, 6, ... and the second in 4, 8, ...
    for _ in range(6):
        step(optimizer)
    # The third round is under way, and each fragment has been trained since it left.
    state = saved(optimizer)
    for _ in range(2):
        step(optimizer)
    optimizer.leave()
    assert weights(store, 4) == [2.0, 4.0, 4.0, 4.0]
    again = loaded(other := dist.HashStore(), state, **options)
    again.join()
    for _ in range(2):
        step(again)
    again.leave()
    board = gradwire.Meeting(other, "looks on").open()
    # What had left at the other place is made of four steps, and goes with the two since.
    assert Closed.read(board.read("closed/3")).came["0"].weight == 6.0


def test_a_checkpoint_within_a_round_keeps_the_steps_of_the_round() -> None:
    optimizer = alone(dist.HashStore(), weigh="steps")
    optimizer.join()
    for _ in range(2):
        step(optimizer)
    again = loaded(store := dist.HashStore(), saved(optimizer), weigh="steps")
    again.join()
    step(again)
    assert weights(store, 1) == [3.0]
    again.leave()


@pytest.mark.parametrize(("before", "after", "weight"), [("workers", "steps", 3.0), ("steps", "tokens", 7.0)])
def test_a_checkpoint_of_another_unit_counts_as_far_as_it_can(before: str, after: str, weight: float) -> None:
    """All workers that count alike count steps, too; of steps nobody knows the tokens."""
    optimizer = alone(dist.HashStore(), weigh=before)
    optimizer.join()
    for _ in range(2):
        step(optimizer)
    again = loaded(store := dist.HashStore(), saved(optimizer), weigh=after)
    again.join()
    step(again, 7 if after == "tokens" else 0)
    assert weights(store, 1) == [weight]
    again.leave()


def test_what_an_earlier_process_has_sent_of_a_fragment_under_way_elsewhere_is_not_sent_again() -> None:
    """It was under way at a place that is gone, so it goes anew: with a process that is killed then."""
    options = {"kind": "diloco", "every": 4, "fragments": 2, "delay": 1, "weigh": "steps", "lr": 1.0, "momentum": 0.0}
    optimizer = alone(dist.HashStore(), **options)
    optimizer.join()
    for _ in range(6):
        step(optimizer)
    state, place = saved(optimizer), dist.HashStore()
    killed, other = (loaded(place, state, name=name, workers=2, **options) for name in "01")
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda each: each.join(), (killed, other)))
    for _ in range(2):
        step(killed)
    arrivals = gradwire.Meeting(place, "looks on").open()
    while not any(arrivals.entries("arrivals/3")):
        # Its thread hands in while it trains on.
        time.sleep(0.01)
    again = loaded(place, state, workers=2, **options)
    again.join()
    for _ in range(2):
        step(other)
    # Its thread closes the round; a process that comes to it before has its own change under way.
    assert arrivals.wait("closed/3", 60.0)
    for _ in range(2):
        step(again)
    first = again.streams.all[0]
    assert Closed.read(arrivals.read("closed/3")).came["0"].weight == 6.0
    # What it came with was sent; its own two steps of 0.1 wait for the fragment's next round.
    for number in range(first.numbers.start, first.numbers.stop):
        wait = again.agreed.views[number] - again.params[number].detach()
        torch.testing.assert_close(wait, torch.full_like(wait, 0.2), rtol=0, atol=1e-6)
    assert again.streamed.weights()[0] == 2.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weigh": "epochs"}, "QsparseLocal.weigh must be one of workers, steps, tokens, got 'epochs'"),
        ({"weigh": ["steps"]}, "QsparseLocal.weigh must be one of workers, steps, tokens, got ['steps']"),
        ({"weigh": "steps", "kind": "diloco", "fragments": 0}, "fragments must be an integer >= 1 or None, got 0"),
    ],
)
def test_what_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        alone(dist.HashStore(), **options)
    assert text in str(refused.value)


def _without(rank: int) -> str:
    try:
        alone(dist.HashStore(), meeting=None, weigh="steps")
    except ConfigError as error:
        return str(error)
    return ""


def test_a_group_has_no_weights() -> None:
    assert run_ranks(1, _without) == ["QsparseLocal.weigh must be 'workers' without a meeting, got 'steps'"]


@pytest.mark.parametrize("weigh", ["workers", "steps"])
def test_tokens_that_would_not_count_are_refused(weigh: str) -> None:
    with pytest.raises(ConfigError, match=rf"add_tokens\(\) must be with weigh='tokens', got weigh='{weigh}'"):
        alone(dist.HashStore(), weigh=weigh).add_tokens(1)


def test_workers_of_an_earlier_version_read_what_is_not_weighed() -> None:
    """They expect two values of each payload."""
    optimizer = alone(store := dist.HashStore())
    optimizer.join()
    for _ in range(3):
        step(optimizer)
    note = gradwire.Meeting(store, "looks on").open().read("closed/1")
    assert [len(each) for each in note["came"].values()] == [2]
    optimizer.leave()


@pytest.mark.parametrize("number", [-1, float("inf"), float("nan"), "10", None])
def test_tokens_are_numbers(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"add_tokens\.number must be a finite number >= 0, got"):
        alone(dist.HashStore(), weigh="tokens").add_tokens(number)


def test_a_step_without_tokens_is_refused_before_it_is_made() -> None:
    optimizer = alone(dist.HashStore(), weigh="tokens")
    optimizer.join()
    before = [param.clone() for param in optimizer.params]
    with pytest.raises(ConfigError, match=r"step\(\) must be after add_tokens\(\) with weigh='tokens', got a call"):
        step(optimizer)
    assert all(torch.equal(old, new) for old, new in zip(before, optimizer.params, strict=True))
    optimizer.leave()


@pytest.mark.parametrize("weight", [0, -1.0, float("inf"), "much"])
def test_a_weight_from_outside_is_checked(weight: Any) -> None:
    note = {"came": {"0": [10, "token", weight]}, "roster": ["0"], "need": [], "seen": 1}
    with pytest.raises(WireError, match="a closed round is a note"):
        Closed.read(note)


def test_a_note_without_a_weight_counts_all_alike() -> None:
    came = {"0": [10, "a"], "1": [10, "b"], "2": [0, "c"]}
    closed = Closed.read({"came": came, "roster": ["0"], "need": [], "seen": 1})
    assert closed.sent == ["0", "1"]
    assert closed.shares == [0.5, 0.5]
