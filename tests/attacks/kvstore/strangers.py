"""Attackers that have no place in the group, or want another's."""

import contextlib
import os
import socket

from tests.attacks.kvstore.wire import Attacker, init, introduction, pack, pull, push, raw


def without_hello(endpoint):
    """Requests of somebody who did not say who he is."""
    fields = {"push": push("w"), "pull": pull("w"), "init": init("w"), "finish": {}, "states": {}}
    for op, each in fields.items():
        with Attacker(endpoint) as attacker:
            assert attacker.request(op, **each)["text"] == "a session starts with hello"


def with_the_name_of_a_connection(endpoint):
    """The part of a worker's name that can be guessed is not enough to be it."""
    for name in (b"worker-0", b"worker-0-", b"worker-0-" + b"0" * 32, b"worker-1-" + os.urandom(16).hex().encode()):
        with Attacker(endpoint, name=name) as attacker:
            assert attacker.request("finish")["kind"] == "hello"


def with_a_rank_that_is_taken(endpoint):
    """Claiming the rank of a worker that is there, with sessions of one's own."""
    for session in (bytes(16), b"\xff" * 16, os.urandom(16)):
        with Attacker(endpoint, rank=0, session=session, patient=False) as attacker:
            assert attacker.introduced["kind"] == "taken", attacker.introduced
            assert attacker.request("finish")["op"] == "error"


def with_another_place(endpoint):
    """Ranks and groups that do not exist, versions and kinds that are spoken nowhere."""
    for hello in (
        {"rank": 2},
        {"rank": 2**20},
        {"rank": 0, "world": 1},
        {"rank": 1, "sync": True},
        {"rank": -1},
        {"rank": 1, "version": 2**40},
        {"rank": 1, "session": b"short"},
        {"rank": True},
    ):
        with Attacker(endpoint, patient=False, **hello) as attacker:
            assert attacker.introduced["op"] == "error", hello


def a_session_again(endpoint):
    """A worker's messages are sent again by somebody who has seen them: the same hello, the same pushes."""
    token = os.urandom(16)
    with Attacker(endpoint, 1, session=token) as worker:
        assert worker.introduced["op"] == "welcome", worker.introduced
        assert worker.request("pull", **pull("w"))["op"] == "value"
    with Attacker(endpoint) as thief:
        recorded = pack("finish", seq=2)
        assert thief.ask(recorded)["text"] == "a session starts with hello"
    # With the secret of the session itself he is the worker, and nobody else.
    with Attacker(endpoint, 1, session=token) as thief:
        assert thief.introduced["rank"] == 1
        thief.request("push", bytes(16), **push("w", step=1), rank=0)
        assert thief.ask(introduction(0, session=token))["kind"] == "taken"


def other_protocols(endpoint):
    """HTTP, TLS, nothing, noise, and a greeting that breaks off."""
    said = (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\xff" * 5,
        b"\0" * 4096,
        os.urandom(100_000),
        b"\xff" + bytes(8) + b"\x7f\x03\x00NULL",
    )
    for each in said:
        # The server may close the connection while it is still being spoken to.
        with raw(endpoint) as connection, contextlib.suppress(OSError):
            connection.sendall(each)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(100)


ATTACKS = [
    without_hello,
    with_the_name_of_a_connection,
    with_a_rank_that_is_taken,
    with_another_place,
    a_session_again,
    other_protocols,
]
