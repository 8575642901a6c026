"""Too much of everything, and too little."""

import contextlib
import os
import struct

import zmq

from tests.attacks.kvstore.wire import (
    CHUNK,
    CONTEXT,
    Attacker,
    config,
    introduction,
    pack,
    part,
    pull,
    raw,
    send_while_taken,
    zmtp,
)


def connections(endpoint):
    """More than the server may have open files: silent ones, and some that speak its language."""
    held = []
    try:
        with contextlib.suppress(OSError):
            held.extend(raw(endpoint) if i % 2 else zmtp(endpoint, b"flood-%d" % i) for i in range(300))
    finally:
        for each in held:
            each.close()


def hellos(endpoint):
    """Introductions as fast as they go."""
    socket = CONTEXT.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(endpoint)
    for _ in range(3000):
        socket.send(introduction(1, session=os.urandom(16)))
    assert socket.poll(20_000)
    socket.close(0)


def a_message_without_end(endpoint):
    """Parts of one message, and never the last."""
    with zmtp(endpoint, b"endless") as connection:
        send_while_taken(connection, part(bytes(CHUNK), more=True), 2**31)


def answers_that_nobody_reads(endpoint):
    """Questions with large answers, from somebody who never reads one."""
    with zmtp(endpoint, b"deaf") as connection:
        connection.sendall(part(introduction(1), more=False))
        header = pack("rows", seq=1, key="w", step=0, chunk=0, chunks=1)
        question = part(header, more=True) + part(struct.pack("<300q", *range(300)), more=False)
        send_while_taken(connection, question * 20, 20_000 * len(question))


def questions_without_answers(endpoint):
    """Pulls of a step that will never be, each of which would be kept."""
    with Attacker(endpoint, 1) as attacker:
        for seq in range(1, 70_000):
            attacker.socket.send(pack("pull", seq=seq, **pull("w", 2**40)))
        told = attacker.answer(30)
        assert told["op"] == "error", told


def compressions(endpoint):
    """Settings without end."""
    with Attacker(endpoint, 1) as attacker:
        for number in range(1, 5000):
            attacker.socket.send(pack("config", seq=number, number=number, config=config(threshold=number / 10)))
        assert attacker.answer()["op"] == "done"


def slow_bytes(endpoint):
    """A hundred connections that say one byte of a greeting and then nothing more."""
    held = [raw(endpoint) for _ in range(100)]
    for each in held:
        each.sendall(b"\xff")
    for each in held:
        each.close()


ATTACKS = [
    connections,
    hellos,
    a_message_without_end,
    answers_that_nobody_reads,
    questions_without_answers,
    compressions,
    slow_bytes,
]
