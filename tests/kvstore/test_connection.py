"""A worker's connection that is refused something, after other things were acknowledged."""

import pytest
import torch
import zmq

from gradwire import ConfigError, GroupError
from gradwire._system import Readings
from gradwire.kvstore.system import SYSTEM
from gradwire.kvstore.worker.connection import Request, ServerConnection


@pytest.fixture
def link():
    context = zmq.Context()
    link = ServerConnection(
        context, "server 0", "tcp://127.0.0.1:1", b"name", b"hello", None, None, Readings(SYSTEM.clock, 8.0)
    )
    yield link
    link.close()
    context.destroy(0)


def made(link, seq, op="push", *, declare=False):
    """A request of the connection."""
    fields = {"items": [["w", seq, 4, -1]], "config": 0, "optimizer": 0} if op == "push" else {"number": seq}
    request = Request(op, fields, torch.zeros(4, dtype=torch.uint8) if op == "push" else None, declare=declare, seq=seq)
    link.add(request)
    return request


def welcome(link, epoch=b"e" * 16, run=b"r" * 16, snapshots=1):
    link._welcome([], epoch, run, 0, 1, snapshots, bounded=False)


def repeated(link):
    """A push that was acknowledged, and is repeated to a server that was restarted."""
    welcome(link)
    request = made(link, 1)
    link._done([], 1, 0, [0], 1)
    assert request.future.result() == 0
    welcome(link, epoch=b"f" * 16)
    assert link.unanswered == {1: request}
    return request


def test_an_acknowledged_push_that_is_refused_later_fails_the_store(link):
    repeated(link)
    waiting = made(link, 2)
    link._error([], 1, "config", "step 1 is too far ahead")
    for request in (waiting, made(link, 3)):
        with pytest.raises(GroupError, match="refuses what it had acknowledged before: step 1 is too far ahead"):
            request.future.result(0)


def test_an_acknowledged_push_that_waits_for_a_dead_worker_does_not(link):
    repeated(link)
    link._error([], 1, "dead", "worker 1 has not been heard of")
    assert not made(link, 2).future.done()


def test_what_was_acknowledged_is_repeated_though_all_requests_failed(link):
    request = repeated(link)
    waiting = made(link, 2)
    link.fail(GroupError("the server was away"))
    assert waiting.future.exception() is not None
    assert link.unanswered == {1: request}


def test_what_a_session_declared_is_declared_in_the_next_one_to_the_same_server_too(link):
    welcome(link)
    request = made(link, 1, "config", declare=True)
    link._done([], 1, 0, [], 1)
    assert link.unanswered == {}
    welcome(link)
    assert link.unanswered == {1: request}


def test_a_refused_declaration_and_a_refused_push_are_not_repeated(link):
    welcome(link)
    for seq, op in ((1, "config"), (2, "push")):
        request = made(link, seq, op, declare=op == "config")
        link._error([], seq, "config", "no such thing")
        with pytest.raises(ConfigError, match="no such thing"):
            request.future.result(0)
    welcome(link, epoch=b"f" * 16)
    assert link.unanswered == {}


def test_another_run_at_the_address_fails_all_requests(link):
    welcome(link)
    waiting = made(link, 1)
    welcome(link, epoch=b"f" * 16, run=b"s" * 16)
    for request in (waiting, made(link, 2)):
        with pytest.raises(GroupError, match="was restarted without its snapshot, or with another server's"):
            request.future.result(0)
    assert link.unanswered == {}


def test_an_older_copy_of_the_file_fails_all_requests(link):
    welcome(link)
    waiting = made(link, 1)
    link._done([], 7, 0, [], 3)
    welcome(link, snapshots=1)
    assert not waiting.future.done(), "the same process tells the number with which it began"
    welcome(link, epoch=b"f" * 16, snapshots=2)
    for request in (waiting, made(link, 2)):
        with pytest.raises(GroupError, match="older copy of its snapshot, number 2: what was pushed until number 3"):
            request.future.result(0)


def test_a_refused_introduction_fails_what_is_asked_for_later(link):
    link._error([], 0, "config", "this server continues server 1 of 2")
    assert "this server continues server 1 of 2" in str(link.error(0.0, 60.0))


def test_the_oldest_setting_that_a_kept_push_names_is_declared_again(link):
    welcome(link)
    for number in range(1, 6):
        made(link, 10 * number, "optimizer", declare=True).fields["number"] = number
        push = Request("push", {"items": [["w", number, 4, -1]], "config": 0, "optimizer": number}, seq=10 * number + 1)
        link.add(push)
    link._drop("w", 2)
    made(link, 60, "optimizer", declare=True).fields["number"] = 6
    assert [each.fields["number"] for each in link.declared] == [3, 4, 5, 6]


def declared(link, op, number, seq):
    link.add(Request(op, {"number": number}, declare=True, seq=seq))


@pytest.mark.parametrize("op", ["config", "optimizer"])
def test_what_may_change_in_every_step_is_not_kept_for_ever(link, op):
    """A server that was restarted is told the newest, and those that a repeated push may name."""
    welcome(link)
    for number in range(1, 50):
        declared(link, op, number, number)
    assert len(link.declared) <= 3
    fields = {"items": [["w", 1, 4, -1]], "config": 0, "optimizer": 0, op: 49}
    link.add(Request("push", fields, torch.zeros(4, dtype=torch.uint8), seq=50))
    for number in range(50, 60):
        declared(link, op, number, number + 1)
    assert [each.fields["number"] for each in link.declared] == list(range(49, 60))
    link._done([], 50, 0, [1], 1)
    declared(link, op, 60, 61)
    assert [each.fields["number"] for each in link.declared] == [*([58] if op == "config" else []), 59, 60]
