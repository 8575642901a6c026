"""Workers of a meeting that are several ranks: real processes with shards of ``fully_shard``, which come, die and come
again together."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwire
from gradwire.errors import ConfigError, GradwireError, GroupError
from gradwire.optim.local.attendance import KEPT
from tests.meeting.workers import Island, Worker, together

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Worker]

EXACT: dict[str, Any] = {"compressor": "none", "kind": "diloco", "lr": 0.7, "momentum": 0.5}
STREAMED: dict[str, Any] = {**EXACT, "every": 6, "fragments": 2, "delay": 2}
SPARSE: dict[str, Any] = {"compressor": "topk", "ratio": 0.1}
SHORT = {"deadline": 5.0, "timeout": 60.0, "workers": 2}


def train(workers: list[Any], rounds: range) -> list[Any]:
    for t in rounds:
        for i, worker in enumerate(workers):
            worker.ask("local", 100 * t + i)
        told = together(workers, "exchange")
    return told


def of(told: list[Any], key: str) -> list[Any]:
    """One figure of every rank of every island."""
    return [rank[key] for island in told for rank in island]


def test_islands_agree_on_what_workers_of_one_rank_agree_on_to_the_bit(places: Any, worker: Start) -> None:
    place, other = next(places), next(places)
    islands = [Island(worker, place, name, SHORT, **EXACT) for name in "01"]
    assert together(islands, "join") == [[0, 0], [0, 0]]
    told = train(islands, range(3))
    assert of(told, "round") == [3] * 4
    assert of(told, "workers") == [["0", "1"]] * 4
    plain = [worker(other, name, SHORT, **EXACT) for name in "01"]
    together(plain, "join")
    train(plain, range(3))
    # The parameters of the last round, the outer momentum, and what may be late, of half of 1,804 elements.
    assert of(told, "kept_bytes") == [3 * 4 * 902] * 4
    # What hung at the place for the first round is taken down, and of the last it is there.
    board = gradwire.Meeting(place, "looks on").open()
    for t, there in ((1, False), (3, True)):
        for nbytes, token in board.read(f"closed/{t}")["came"].values():
            assert nbytes == 1
            assert [board.look(f"payload/{t}/{token}/{shard}") is not None for shard in range(2)] == [there] * 2
    # Rows are cut in two, so the shards of each parameter are the halves of its elements.
    whole = plain[0].ask("tensors")
    for shards in together(islands, "tensors"):
        for first, second, both in zip(*shards, whole, strict=True):
            assert torch.equal(torch.cat([first, second]), both)


def test_what_is_left_and_what_is_late_add_up_when_an_island_dies_and_comes_again(place: str, worker: Start) -> None:
    first, second = (Island(worker, place, name, SHORT, **SPARSE) for name in "01")
    together([first, second], "join")
    applied = Applied(first)
    train([first, second], range(1))
    applied.count(2)
    second.ask("local", 7)
    saved, before, way = (second.ask(what) for what in ("save", "sums", "way"))
    second.signal(signal.SIGKILL)
    # The round closes at the deadline without it, and the next does not wait.
    told = train([first], range(1, 3))
    assert of(told, "workers") == [["0"]] * 2
    applied.count(1)
    again = Island(worker, place, "1", SHORT, **SPARSE)
    again.ask_each("load", saved)
    assert again.ask("join") == [3, 3]
    for now, then, gone in zip(again.ask("sums"), before, way, strict=True):
        # What was trained in the round that is over waits for the next.
        assert torch.equal(now["waits"], then["waits"] + gone)
    told = train([first, again], range(3, 4))
    assert of(told, "workers") == [["0", "1"]] * 4
    applied.count(2)
    sums = together([first, again], "sums")
    for shard in range(2):
        # Of the one that died, what it made before is in the state from which it came again.
        gone = sums[0][shard]["ways"] + sums[1][shard]["ways"] + before[shard]["ways"]
        waits = sums[0][shard]["waits"] + sums[1][shard]["waits"]
        assert float((applied.total[shard] + waits - gone).norm()) <= 1e-6 * float(gone.norm())
        assert float(waits.norm()) > 0.01 * float(gone.norm())


class Applied:
    """The sum of what the rounds applied to each shard."""

    def __init__(self, island: Island) -> None:
        self.island = island
        self.before = [each["agreed"] for each in island.ask("sums")]
        self.total = [torch.zeros_like(each) for each in self.before]

    def count(self, workers: int) -> None:
        after = [each["agreed"] for each in self.island.ask("sums")]
        for total, old, new in zip(self.total, self.before, after, strict=True):
            total += workers * (old - new)
        self.before = after


@pytest.mark.parametrize("options", [EXACT, STREAMED])
def test_an_island_that_comes_late_takes_over_the_shards_of_the_others(
    options: dict[str, Any], place: str, worker: Start
) -> None:
    meeting = {**SHORT, "workers": 1}
    first = Island(worker, place, "0", meeting, **options)
    first.ask("join")
    streams = "fragments" in options
    work = ("stream", 9, 1) if streams else ("local", 1)
    first.ask(*work)
    first.ask("exchange")
    late = Island(worker, place, "1", meeting, **options).tell("join")
    joins = gradwire.Meeting(place, "looks on").open()
    while not any(note and note["name"] == "1" for note in joins.entries("joins")):
        time.sleep(0.05)
    # The state is handed over at the end of a round: a fragment leaves in the third step, and lands in the fifth.
    first.ask(*(("stream", 5, 2) if streams else ("local", 2)))
    if not streams:
        first.ask("exchange")
    assert late.answer()[0] > 0
    together([first, late], "exchange")
    together([first, late], *work)
    told = together([first, late], "exchange")
    assert of(told, "workers") == [["0", "1"]] * 4
    agreed = together([first, late], "agreed")
    assert agreed[0] == agreed[1]
    assert agreed[0][0] != agreed[0][1]


@pytest.mark.parametrize("shape", [(3,), (2, 1)])
def test_fragments_of_islands_travel_while_they_train(shape: tuple[int, ...], place: str, worker: Start) -> None:
    """The last of three ranks has nothing of the last fragment, whose four rows the others have."""
    options = {**STREAMED, "lr": 1.0, "momentum": 0.0, "compressor": "qsgd", "bits": 4, "memory": "residual"}
    islands = [Island(worker, place, name, {**SHORT, "deadline": 60.0}, shape, **options) for name in "01"]
    together(islands, "join")
    together(islands, "watch")
    ranks = math.prod(shape)
    for part in range(3):
        streamed(islands, 6, part)
    # A fragment is under way, in what is saved, too.
    streamed(islands, 3, 3)
    assert together(islands, "flights") == [[1] * ranks] * 2
    saved = together(islands, "save")
    streamed(islands, 2, 4)
    assert together(islands, "flights") == [[0] * ranks] * 2
    accounts = together(islands, "account")
    for shard in range(ranks):
        made, waits = (sum(each[shard][key] for each in accounts) for key in ("made", "waits"))
        assert float((accounts[0][shard]["applied"] + waits - made).norm()) <= 1e-5 * float(made.norm())
    for island in islands:
        island.signal(signal.SIGKILL)
    # The round of what was under way is over, and applied from the place.
    again = [Island(worker, place, name, SHORT, shape, **options) for name in "01"]
    for island, state in zip(again, saved, strict=True):
        island.ask_each("load", state)
    together(again, "join")
    streamed(again, 4, 5)
    assert of(together(again, "meet"), "workers") == [["0", "1"]] * 2 * ranks
    agreed = together(again, "agreed")
    assert agreed[0] == agreed[1]
    # Replicas hold the same, and shards differ.
    assert (agreed[0][0] == agreed[0][1]) == (len(shape) == 2)


def streamed(islands: list[Island], steps: int, seed: int) -> None:
    for i, island in enumerate(islands):
        island.tell("stream", steps, 10 * seed + i)
    for island in islands:
        island.answer()


def test_what_one_shard_cannot_send_none_does(place: str, worker: Start) -> None:
    islands = [Island(worker, place, name, SHORT, compressor="fp16", memory="residual") for name in "01"]
    together(islands, "join")
    train(islands, range(1))
    before = islands[1].ask("sums")
    # A change that is not finite, and one that is, and that 16 bits cannot hold.
    for t, value in enumerate((math.nan, 1e6)):
        for i, island in enumerate(islands):
            island.ask("local", 10 * t + i)
        islands[1].ranks[1].ask("put", value)
        told = together(islands, "exchange")
        assert of(told, "workers") == [["0"]] * 4
        assert of(told, "nonfinite_steps") == [0, 0, t + 1, t + 1]
    # What the other shard had encoded is taken back: its residual is what it was.
    for now, then in zip(islands[1].ask("sums"), before, strict=True):
        assert torch.equal(now["waits"], then["waits"])
        assert now["waits"].any()
    told = train(islands, range(2, 3))
    assert of(told, "workers") == [["0", "1"]] * 4
    assert of(told, "parameters")[:2] == of(told, "parameters")[2:]


def test_islands_count_by_the_tokens_of_all_their_ranks(place: str, worker: Start) -> None:
    islands = [Island(worker, place, name, SHORT, weigh="tokens", **EXACT) for name in "01"]
    together(islands, "join")
    for i, island in enumerate(islands):
        island.ask_each("tokens", [10.0, 20.0 + 30.0 * i])
    told = together(islands, "exchange")
    assert of(told, "shares") == [[pytest.approx(1 / 3), pytest.approx(2 / 3)]] * 4
    # A batch of nothing but padding counts as none, and one that nobody has counted is an error on both ranks.
    for i, island in enumerate(islands):
        island.ask_each("tokens", [0.0, 10.0 + 30.0 * i])
    told = together(islands, "exchange")
    assert of(told, "shares") == [[pytest.approx(0.2), pytest.approx(0.8)]] * 4
    for rank, number in zip(islands[0].ranks, (10.0, None), strict=True):
        rank.tell("tokens", number)
    for rank in islands[0].ranks:
        with pytest.raises(ConfigError, match=r"step\(\) must be after add_tokens\(\)"):
            rank.answer()


def test_a_fragment_of_which_a_rank_has_nothing_is_spoilt_for_it_too(place: str, worker: Start) -> None:
    """The last of three ranks has no elements in the last fragment, and tells the same weights as the others."""
    options = {**STREAMED, "delay": 1, "weigh": "steps"}
    island = Island(worker, place, "0", {**SHORT, "workers": 1}, (3,), **options)
    island.ask("join")
    island.ask("stream", 5, 1)
    island.ranks[0].ask("put", math.nan, -1)
    island.ask("stream", 2, 2)
    assert [each["nonfinite_steps"] for each in island.ask("now")] == [1] * 3
    island.ask("stream", 6, 3)
    notes = [gradwire.Meeting(place, "looks on").open().read(f"closed/{t}")["came"]["0"] for t in (1, 2, 3, 4)]
    # The steps of a round by each of three ranks; the fourth has those since the spoilt change left.
    assert [note[0] for note in notes] == [1, 0, 1, 1]
    assert [note[2] for note in notes if note[0]] == [9.0, 18.0, 18.0]


def test_frozen_shards_are_those_of_the_island_that_comes_first(place: str, worker: Start) -> None:
    islands = [Island(worker, place, name, SHORT, frozen=0, **EXACT) for name in "01"]
    start = islands[0].ask("tensors")
    islands[0].tell("join")
    wait_for(place, "frozen")
    islands[1].tell("join")
    for island in islands:
        island.answer()
    for ours, theirs in zip(islands[1].ask("tensors"), start, strict=True):
        assert torch.equal(ours[0], theirs[0])


def test_a_rank_that_dies_ends_its_island_and_the_others_go_on(place: str, worker: Start) -> None:
    islands = [Island(worker, place, name, SHORT, **SPARSE) for name in "01"]
    together(islands, "join")
    train(islands, range(1))
    for i, island in enumerate(islands):
        island.ask("local", i)
    # The first rank waits at the place, and the other for it.
    islands[1].tell("exchange")
    arrivals = gradwire.Meeting(place, "looks on").open()
    while not any(arrivals.entries("arrivals/2")):
        time.sleep(0.05)
    islands[1].ranks[0].signal(signal.SIGKILL)
    with pytest.raises(GroupError):
        islands[1].ranks[1].answer()
    # What it had handed in counts, and later rounds go on without it.
    assert of([islands[0].ask("exchange")], "workers") == [["0", "1"]] * 2
    assert of([train(islands[:1], range(2, 3))[0]], "workers") == [["0"]] * 2


def test_a_round_that_the_ranks_do_not_begin_together_leaves_the_change_where_it_was(place: str, worker: Start) -> None:
    island = Island(worker, place, "0", {**SHORT, "workers": 1}, **SPARSE)
    island.ask("join")
    train([island], range(1))
    island.ask("local", 1)
    way = island.ask("way")[1]
    island.ranks[0].signal(signal.SIGKILL)
    with pytest.raises(GradwireError):
        island.ranks[1].ask("exchange")
    assert torch.equal(island.ranks[1].ask("way"), way)
    assert way.any()


def test_an_island_that_was_stopped_for_many_rounds_takes_over_the_state(place: str, worker: Start) -> None:
    meeting = {**SHORT, "deadline": 2.0}
    islands = [Island(worker, place, name, meeting, **EXACT) for name in "01"]
    together(islands, "join")
    train(islands, range(1))
    islands[1].ask("local", 1)
    islands[1].signal(signal.SIGSTOP)
    train(islands[:1], range(1, KEPT + 4))
    islands[1].signal(signal.SIGCONT)
    islands[1].tell("exchange")
    # The payloads of the rounds that it has missed are gone, and the state comes at the end of a round.
    t = KEPT + 4
    while not all(rank.pipe.poll(0.5) for rank in islands[1].ranks):
        train(islands[:1], range(t, t + 1))
        t += 1
    assert of([islands[1].answer()], "left_behind") == [1, 1]
    told = train(islands, range(t, t + 1))
    assert of(told, "workers") == [["0", "1"]] * 4
    assert of(told, "parameters")[:2] == of(told, "parameters")[2:]


def test_files_of_different_steps_are_refused_on_all_ranks(place: str, worker: Start) -> None:
    meeting = {**SHORT, "workers": 1}
    island = Island(worker, place, "0", meeting, **EXACT)
    island.ask("join")
    train([island], range(1))
    early = island.ask("save")
    train([island], range(1, 2))
    late = island.ask("save")
    island.signal(signal.SIGKILL)
    again = Island(worker, place, "0", meeting, **EXACT)
    again.ask_each("load", [late[0], early[1]])
    again.tell("join")
    with pytest.raises(GroupError, match="another rank of this worker failed"):
        again.ranks[0].answer()
    with pytest.raises(ConfigError, match=r"state_dict must be on all ranks .* of the first, {'round': 2"):
        again.ranks[1].answer()
    again.ask_each("load", late)
    assert again.ask("join") == [2, 2]


def test_wrong_companions_are_refused_on_all_ranks(places: Any, worker: Start) -> None:
    # Ranks of one island that say different names.
    with pytest.raises(GroupError, match=r"meeting\.name is '0' on rank 0; '1' on rank 1"):
        Island(worker, next(places), ["0", "1"], SHORT, **EXACT)
    # A worker of one rank where an island is.
    place = next(places)
    island, alone = Island(worker, place, "0", SHORT, **EXACT), worker(place, "1", SHORT, **EXACT)
    island.tell("join")
    wait_for(place, "config")
    with pytest.raises(ConfigError, match="must be configured as the meeting"):
        alone.ask("join")
    # And an island of replicas where one of shards is: each of its ranks says so, or that another one does.
    replicas = Island(worker, place, "1", SHORT, (2, 1), **EXACT).tell("join")
    refused = r"must be configured as the meeting|another rank of this worker failed"
    for rank in replicas.ranks:
        with pytest.raises(GradwireError, match=refused):
            rank.answer()
    Island(worker, place, "1", SHORT, **EXACT).ask("join")
    assert island.answer() == [0, 0]


def test_two_islands_of_one_name(place: str, worker: Start) -> None:
    island = Island(worker, place, "0", {**SHORT, "workers": 1}, **EXACT)
    island.ask("join")
    Island(worker, place, "0", {**SHORT, "workers": 1}, **EXACT).tell("join")
    for _ in range(600):
        if gradwire.Meeting(place, "looks on").open().entries("joins", after=1):
            break
        time.sleep(0.05)
    island.ask("local", 1)
    island.tell("exchange")
    for rank in island.ranks:
        # What the first rank hears at the place all say.
        with pytest.raises(GroupError, match="another process came as worker '0'"):
            rank.answer()


def wait_for(place: str, name: str) -> None:
    """Wait for a note at the place."""
    assert gradwire.Meeting(place, "looks on").open().wait(name, 60.0)
