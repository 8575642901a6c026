"""Compressed answers, message by message: what a server gives to whom, whatever was lost, missed or restarted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import WireError, kvstore
from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.replica import Held
from gradwire.kvstore.server.core import ServerCore
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.stores import pulled
from tests.kvstore.talk import ask, hello, init, load, messages, ops, push, save
from tests.kvstore.test_pull import METHODS, SHAPE, grads

TOPK = {"type": "none", "pull": {"type": "topk", "ratio": 0.25}}


def pair(params=TOPK, sync=True, world=2, core=None, value=None):
    """A server, its workers with a compression, and a key "w" of eight zeros."""
    core = core or ServerCore(Rules(workers=world))
    peers = [joined(core, rank, params, sync, world, value=value) for rank in range(world)]
    return core, *peers


def joined(core, rank, params=TOPK, sync=True, world=2, session=None, value=None):
    peer = hello(core, rank, world=world, sync=sync, session=session)
    init(core, peer, 1, "w", torch.zeros(8) if value is None else value)
    assert ops(ask(core, peer, "config", 2, number=1, config=parse(params).to_config())) == ["done"]
    return peer


def follow(core, peer, seq, step, have):
    return ask(core, peer, "follow", seq, key="w", step=step, config=1, have=have)


def answers(replies):
    return {peer: raw for peer, op, _, raw in messages(replies) if op == "value"}


def test_one_payload_for_all_and_the_whole_for_who_missed_a_step():
    core, a, b = pair()
    ask(core, a, "optimizer", 3, number=1, name="test", numbers={})
    held = {peer: Held((8,), torch.float32) for peer in (a, b)}
    code, value = parse(TOPK).pull, torch.zeros(8)
    for step, grad in enumerate(grads(4, (8,)), 1):
        for peer in (a, b):
            push(core, peer, 10 * step, "w", step, grad, config=1, optimizer=1)
        value += 2 * grad
        peers = (a, b) if step != 2 else (a,)
        told = {}
        for peer in peers:
            told |= answers(follow(core, peer, 10 * step + 1, step, held[peer].number))
            held[peer].take(bytearray(told[peer]), code)
        # Two of eight elements, with their places; whoever has not the replica before gets all eight.
        assert len(told[a]) == 16 + (32 if step == 1 else code.layout((8,)).nbytes)
        assert step != 3 or len(told[b]) == 16 + 32
        assert step != 4 or told[a] == told[b]
        if step != 2:
            assert torch.equal(held[a].tensor, held[b].tensor)
    assert (held[a].tensor != value).any()
    replica = core.values.parts["w"].replicas[-1]
    assert torch.equal(replica.held, held[a].tensor)


def test_an_answer_that_was_lost_is_given_again():
    for sync in (True, False):
        core, a = pair(sync=sync, world=1)
        held, twin = Held((8,), torch.float32), Held((8,), torch.float32)
        code = parse(TOPK).pull
        for step, grad in enumerate(grads(3, (8,)), 1):
            push(core, a, 10 * step, "w", step, grad, config=1)
            first = answers(follow(core, a, 10 * step + 1, step, held.number))[a]
            again = answers(follow(core, a, 10 * step + 1, step, held.number))[a]
            assert torch.equal(held.take(bytearray(again), code), twin.take(bytearray(first), code))
        assert len(again) == 16 + code.layout((8,)).nbytes


def test_nothing_new_is_nothing():
    core, a, b = pair()
    for peer in (a, b):
        push(core, peer, 3, "w", 1, torch.ones(8), config=1)
    (first,) = answers(follow(core, a, 4, 1, -1)).values()
    (second,) = answers(follow(core, a, 5, 1, 1)).values()
    held = Held((8,), torch.float32)
    before = held.take(bytearray(first), parse(TOPK).pull).clone()
    assert len(second) == 16
    assert torch.equal(held.take(bytearray(second), parse(TOPK).pull), before)


def test_a_claim_to_hold_what_this_server_never_gave_is_not_believed():
    core, a, b = pair()
    for step in (1, 2):
        for peer in (a, b):
            push(core, peer, 10 * step, "w", step, torch.ones(8), config=1, optimizer=0)
    told = answers(follow(core, a, 50, 2, 2))[a]
    code = parse(TOPK).pull
    held = Held((8,), torch.float32).take(bytearray(told), code)
    assert torch.equal(held, core.values.parts["w"].replicas[-1].held)


def test_answers_in_two_ways_are_refused():
    core, a, b = pair()
    ask(core, b, "config", 3, number=2, config=parse({"type": "none"}).to_config())
    push(core, a, 4, "w", 1, torch.ones(8), config=1)
    (reply,) = messages(push(core, b, 4, "w", 1, torch.ones(8), config=2))
    assert (reply[1], reply[2]["kind"]) == ("error", "config")
    assert "must be the same on all workers" in reply[2]["text"]


@pytest.mark.parametrize("optimizer", [0, 1])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_server_that_goes_on_from_its_snapshot_answers_as_if_it_had_not_ended(method, optimizer, tmp_path):
    params, steps = {"type": "2bit", "threshold": 0.01, "pull": method}, grads(6, SHAPE)
    code, push_code = parse(params).pull, parse(params).push

    def run(restart):
        core, a = pair(params, world=1, value=torch.zeros(SHAPE))
        held = Held(SHAPE, torch.float32)
        if optimizer:
            ask(core, a, "optimizer", 3, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
        for step, grad in enumerate(steps, 1):
            if restart and step == 4:
                save(core, tmp_path / "snapshot")
                core = load(tmp_path / "snapshot", Rules(workers=1))
                a = joined(core, 0, params, world=1, value=torch.zeros(SHAPE))
                if optimizer:
                    ask(core, a, "optimizer", 3, number=1, name="sgd", numbers={"lr": 1.0, "momentum": 0.5})
            push(core, a, 10 * step, "w", step, push_code.compress(grad), config=1, optimizer=optimizer)
            told = answers(follow(core, a, 10 * step + 1, step, held.number))[a]
            yield held.take(bytearray(told), code).clone()

    for mine, theirs in zip(run(True), run(False), strict=True):
        assert torch.equal(mine, theirs)


def test_in_async_each_worker_has_what_it_was_given():
    core, a, b = pair(sync=False)
    for peer in (a, b):
        ask(core, peer, "optimizer", 3, number=1, name="test", numbers={})
    held = {peer: Held((8,), torch.float32) for peer in (a, b)}
    code, value = parse(TOPK).pull, torch.zeros(8)
    for step, grad in enumerate(grads(5, (8,)), 1):
        push(core, a, 10 * step, "w", step, grad, config=1, optimizer=1)
        value += grad
        for peer in (a, b)[: 1 + step % 2]:
            own = step if peer == a else 0
            told = answers(follow(core, peer, 10 * step + 1, own, held[peer].number))[peer]
            held[peer].take(bytearray(told), code)
    assert not torch.equal(held[a].tensor, held[b].tensor)
    # Each further pull delivers two more of eight elements, until nothing is left.
    for turn in range(4):
        for peer in (a, b):
            told = answers(follow(core, peer, 100 + turn, 0, held[peer].number))[peer]
            held[peer].take(bytearray(told), code)
    for peer in (a, b):
        assert torch.allclose(held[peer].tensor, value, atol=1e-7)


class World:
    """A server and two workers, and what each of them must hold."""

    def __init__(self, folder, optimizer):
        self.file, self.optimizer = folder / "snapshot", optimizer
        self.core = ServerCore(Rules(workers=2))
        self.peers = [b"", b""]
        self.steps, self.pushed, self.expected = [0, 0], [], [torch.zeros(8)]
        self.held = [Held((8,), torch.float32) for _ in range(2)]
        self.seq = 10
        self.simulated = kvstore.create("device")
        self.simulated.set_gradient_compression(TOPK)
        if optimizer:
            self.simulated.set_optimizer("test")
        self.simulated.init("w", torch.zeros(8))
        for rank in range(2):
            self.comes(rank, bytes([rank]) * 16)

    def comes(self, rank, session):
        self.peers[rank] = joined(self.core, rank, session=session)
        if self.optimizer:
            ask(self.core, self.peers[rank], "optimizer", 3, number=1, name="test", numbers={})

    def push(self, rank):
        if self.steps[rank] - self.steps[1 - rank] > 1:
            return
        self.steps[rank] += 1
        if self.steps[rank] > len(self.pushed):
            self.pushed.append(grads(len(self.pushed) + 1, (8,))[-1])
            self.simulated.push("w", [self.pushed[-1]] * 2)
            self.expected.append(pulled(self.simulated, "w", (8,)))
        self._send(rank, self.steps[rank])

    def _send(self, rank, step):
        self.seq += 1
        grad, number = self.pushed[step - 1], int(self.optimizer)
        push(self.core, self.peers[rank], self.seq, "w", step, grad, config=1, optimizer=number)

    def pull(self, rank, lost=False):
        # A push of a worker that went away counts, too: the key may be further than the worker that came again.
        version = self.core.values.parts["w"].version
        self.seq += 1
        told = answers(follow(self.core, self.peers[rank], self.seq, version, self.held[rank].number))
        if not lost:
            got = self.held[rank].take(bytearray(told[self.peers[rank]]), parse(TOPK).pull)
            assert torch.equal(got, self.expected[version])

    def rejoin(self, rank):
        self.held[rank] = Held((8,), torch.float32)
        self.seq += 1
        self.comes(rank, b"%016d" % self.seq)
        self.steps[rank] = self.core.values.parts["w"].version

    def save(self, rank):
        save(self.core, self.file)

    def restart(self, rank):
        """From the last snapshot, if there is one; workers push again what it has not."""
        if not self.file.exists():
            return
        self.core = load(self.file, Rules(workers=2))
        durable = self.core.values.parts["w"].version
        for each in range(2):
            self.comes(each, bytes([each]) * 16)
            for step in range(durable + 1, self.steps[each] + 1):
                self._send(each, step)


moves = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pull", "pull", "lose", "rejoin", "save", "restart"]),
        st.integers(0, 1),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(moves=moves, optimizer=st.booleans())
def test_whatever_happens_workers_hold_the_replica_of_their_step(moves, optimizer, tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"), optimizer)
    for move, rank in moves:
        if move == "lose":
            world.pull(rank, lost=True)
        else:
            getattr(world, move)(rank)
    for rank in range(2):
        world.pull(rank)


@pytest.mark.parametrize(
    "damage", [b"", b"short", bytes(15), b"\x09" + bytes(15), b"\x01" + bytes(15), b"\x03" + bytes(15), bytes(16 + 31)]
)
def test_bytes_that_are_no_answer_are_refused(damage):
    with pytest.raises(WireError):
        Held((8,), torch.float32).take(bytearray(damage), parse(TOPK).pull)
