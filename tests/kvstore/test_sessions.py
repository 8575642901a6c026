"""Ranks that a worker may have, and the state that it finds when it comes back."""

import pytest
import torch

from gradwire.kvstore.protocol.compression import parse
from gradwire.kvstore.protocol.messages import VERSION, pack
from gradwire.kvstore.protocol.updater import OptimizerConfig
from gradwire.kvstore.server.core import HANDLERS, ServerCore
from gradwire.kvstore.server.rules import Rules
from tests.kvstore.talk import ask, hello, init, messages, ops, pair, pull, push, values

ONES = torch.ones(4)
OTHER = b"another process."


def claim(core, peer, rank, session=OTHER, now=0.0, owner=None):
    """Introduce oneself; the answers by peer."""
    frames = [pack("hello", version=VERSION, rank=rank, world=2, server=0, servers=1, sync=True, session=session)]
    return {to: (op, fields) for to, op, fields, _ in messages(core.receive(peer, frames, now, owner))}


def setting(core, peer, number, rate, name="sgd"):
    (told,) = messages(ask(core, peer, "optimizer", 100 + number, number=number, name=name, numbers={"lr": rate}))
    return told[2]["version"] if told[1] == "done" else told[2]["text"]


def test_a_rank_that_is_heard_of_is_not_given_away():
    core, _, b = pair()
    told = claim(core, b"thief", 1, now=2.9)
    assert told[b"thief"][1]["kind"] == "taken"
    assert "rank 1 is taken by a worker that was heard of 2.9 s ago" in told[b"thief"][1]["text"]
    assert told[b][0] == "pong", "whether it can be reached is found out by telling it something"
    assert ops(pull(core, b, 5, "w", 0)) == ["value"]
    assert ops(pull(core, b"thief", 5, "w", 0)) == ["error"]


@pytest.mark.parametrize("gone", ["silent", "unreachable"])
def test_the_place_of_one_who_is_gone_is_free(gone):
    core, _, b = pair()
    if gone == "unreachable":
        core.members.unreachable(b)
    assert claim(core, b"newcomer", 1, now=0.1 if gone == "unreachable" else 3.1)[b"newcomer"][0] == "welcome"
    assert "starts with hello" in messages(pull(core, b, 5, "w", 0))[0][2]["text"]


def test_one_who_could_not_be_reached_and_is_heard_again_keeps_its_place():
    core, _, b = pair()
    core.members.unreachable(b)
    core.receive(b, [pack("ping")], 1.0)
    assert claim(core, b"thief", 1, now=1.5)[b"thief"][1]["kind"] == "taken"


def test_a_rank_belongs_to_the_key_of_its_name():
    core = ServerCore(Rules(workers=2))
    assert "this is the key of worker 0" in claim(core, b"x", 1, owner=0)[b"x"][1]["text"]
    assert claim(core, b"x", 1, owner=1)[b"x"][0] == "welcome"
    assert claim(core, b"y", 0, owner=None)[b"y"][0] == "welcome"


def test_a_worker_that_was_silent_for_long_goes_on_with_its_compressions():
    core, a, b = pair(dead_after=5.0)
    config = parse({"type": "2bit"}).to_config()
    assert ops(ask(core, b, "config", 2, number=1, config=config)) == ["done"]
    core.receive(a, [pack("ping")], 5.0)
    core.tick(6.0)
    assert core.members.dead == {1}
    # The same connection after a pause, or the same process on another one: it introduces itself, and then asks again
    # for what it has no answer to.
    (told,) = messages(core.receive(b, [pack("ping")], 7.0))
    assert told[2]["kind"] == "hello"
    assert claim(core, b, 1, session=bytes([1]) * 16, now=7.0)[b][0] == "welcome"
    assert not core.members.dead
    core.receive(a, [pack("ping")], 12.0)
    core.tick(13.0)
    assert claim(core, b"again", 1, session=bytes([1]) * 16, now=14.0)[b"again"][0] == "welcome"
    assert ops(push(core, b"again", 3, "w", 1, torch.zeros(4, dtype=torch.uint8), config=1)) == ["done"]


def test_a_step_that_was_made_without_a_worker_does_not_swallow_its_push():
    core, a, b = pair(dead_after=5.0, on_dead_worker="continue")
    push(core, a, 2, "w", 1, ONES)
    core.receive(a, [pack("ping")], 4.0)
    core.tick(6.0)
    assert core.values.parts["w"].version == 1
    b = hello(core, 1, now=6.5)
    (told,) = messages(push(core, b, 2, "w", 1, ONES))
    assert told[2]["kind"] == "config"
    assert "step 1 of key 'w' was made without worker 1" in told[2]["text"]
    # Another process of the rank starts from where the key is.
    core.members.unreachable(b)
    c = hello(core, 1, session=OTHER, now=7.0)
    (told,) = messages(init(core, c, 1, "w"))
    assert told[2]["version"] == 1
    push(core, a, 3, "w", 2, ONES)
    assert values(push(core, c, 2, "w", 2, ONES)) == {}
    assert values(pull(core, a, 4, "w", 2)) == {a: [2.0] * 4}


def test_a_process_that_comes_later_finds_the_setting_the_others_are_at():
    core, a, b = pair()
    for number, rate in enumerate((0.5, 0.25, 0.125), 1):
        assert [setting(core, peer, number, rate) for peer in (a, b)] == [number, number]
    core.members.unreachable(b)
    b = hello(core, 1, session=OTHER)
    assert setting(core, b, 1, 0.5) == 1
    assert setting(core, b, 2, 0.125) == 3
    # A new one is the next for both.
    assert setting(core, b, 3, 0.0625) == 4
    assert setting(core, a, 4, 0.0625) == 4
    assert "set_optimizer must get the same values" in setting(core, a, 4, 1.0)


def test_a_setting_of_the_distant_future_is_refused():
    core, a, _ = pair()
    assert setting(core, a, 1, 0.5) == 1
    assert "is not the next one, 2" in setting(core, a, 3, 0.5)


def test_a_first_setting_of_the_distant_future_is_refused_too():
    core, a, b = pair()
    assert setting(core, a, 2**31, 0.5) == (
        "optimizer setting 2147483648 is not the next one, 1: where the server was restarted without a snapshot, or "
        "with an older copy of it, the ones before are lost with its values"
    )
    assert setting(core, b, 1, 0.5) == 1


def test_settings_of_one_optimizer_share_its_state_whoever_names_them():
    core = ServerCore(Rules(workers=2))
    a, b = hello(core, 0, sync=False), hello(core, 1, sync=False)
    for peer in (a, b):
        init(core, peer, 1, "w")
    for number, numbers in enumerate(({"lr": 1.0, "momentum": 0.5}, {"lr": 0.5, "momentum": 0.5}), 1):
        ask(core, a, "optimizer", 1 + number, number=number, name="sgd", numbers=numbers)
    push(core, a, 5, "w", 1, ONES, optimizer=1)
    push(core, a, 6, "w", 2, ONES, optimizer=2)
    assert values(pull(core, a, 7, "w", 2)) == {a: [-1.75] * 4}


def test_requests_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr("gradwire.kvstore.server.pending.MAX_WAITING", 100)
    core, a, b = pair()
    for seq in range(100):
        assert pull(core, b, 10 + seq, "w", 99) == []
        assert pull(core, b, 10 + seq, "w", 99) == []
    assert len(core.pending) == 100
    assert "at most 100 requests that wait" in messages(pull(core, b, 999, "w", 99))[0][2]["text"]
    assert len(core.pending) == 0, "its session is ended"
    assert pull(core, a, 5, "w", 99) == []


def test_values_do_not_fill_the_memory():
    core = ServerCore(Rules(workers=1, max_memory=100))
    a = hello(core, 0, world=1)
    for key in range(6):
        assert ops(init(core, a, 1 + key, key)) == ["done"]
    assert "at most 100 bytes" in messages(init(core, a, 9, "seventh"))[0][2]["text"]


def test_a_bug_ends_one_session_and_not_the_server(monkeypatch, capsys):
    core, a, b = pair()
    monkeypatch.setitem(HANDLERS, "pull", lambda *_, **__: 1 / 0)
    (told,) = messages(pull(core, a, 5, "w", 0))
    assert (told[0], told[2]["kind"], "ZeroDivisionError" in told[2]["text"]) == (a, "wire", True)
    assert "ZeroDivisionError" in capsys.readouterr().err, "and who runs the server can see it"
    assert ops(core.receive(b, [pack("ping")], 0.0)) == ["pong"]


@pytest.mark.parametrize("numbers", [{"dampening": None}, {"nesterov": 1}, {"lr": True}, {"beta1": None}, {"eps": "x"}])
def test_numbers_with_which_a_step_would_fail_are_refused(numbers):
    name = "adam" if {"beta1", "eps"} & numbers.keys() else "sgd"
    others = {"nesterov": "True or False", "dampening": r"a number in \[0, 1\]"}
    wanted = others.get(next(iter(numbers)), "a finite number")
    with pytest.raises(ValueError, match=f"must be {wanted}"):
        OptimizerConfig(name, {"momentum": 0.9, **numbers} if name == "sgd" else numbers)
