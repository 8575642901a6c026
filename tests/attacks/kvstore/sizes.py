"""Numbers and sizes that are not true, from somebody who is a worker."""

import struct

import msgpack

from tests.attacks.kvstore.wire import CHUNK, Attacker, config, init, pack, pull, push

HUGE = 2**62


def refused(told, *words):
    assert told is not None, "no answer"
    assert told["op"] == "error", told
    assert all(word in told["text"] for word in words), told


def oversized_frames(endpoint):
    """A frame above the limit ends the connection; one more frame than a message has is refused."""
    with Attacker(endpoint, 1) as attacker:
        assert attacker.ask(pack("ping"), bytes(CHUNK + 2**20), seconds=1) is None
    with Attacker(endpoint, 1) as attacker:
        refused(attacker.ask(pack("ping"), *[b"x"] * 1000), "at most one frame")
    with Attacker(endpoint, 1) as attacker:
        refused(attacker.ask(bytes(CHUNK)), "a header has at most")


def headers(endpoint):
    """Maps of very many keys, nesting without end, types that msgpack has and a header has not."""
    million = b"\xdf" + struct.pack(">I", 10**6)
    many = msgpack.packb({f"{i:x}": 0 for i in range(9000)})
    keys = b"".join(msgpack.packb(f"k{i}") + b"\xc0" for i in range(10))
    said = (
        million,
        million + keys,
        many,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81" * 60_000,
        b"\x91" * 65_000,
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2}),
        msgpack.packb({b"op": "ping"}),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb({"op": msgpack.Timestamp(1)}),
        b"",
        msgpack.packb({"op": ["ping"]}),
        b"\x81\xa2op\xa4\xff\xff\xff\xff",
        b"\xc1",
        bytes(60_000),
    )
    for each in said:
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.ask(each))


def numbers(endpoint):
    """Negative, overflowing, and of another kind."""
    for field, value in (
        ("step", 0),
        ("step", -1),
        ("step", HUGE * 4 - 1),
        ("step", 1.0),
        ("chunk", -1),
        ("chunk", HUGE),
        ("chunks", 0),
        ("chunks", 2**21),
        ("config", HUGE),
        ("config", -1),
        ("optimizer", HUGE),
        ("nbytes", -1),
        ("nbytes", 15),
        ("nbytes", 17),
        ("nbytes", 2**40),
        ("nbytes", HUGE),
        ("nbytes", 16.0),
        ("rows", -2),
        ("rows", 2**40),
        ("rows", HUGE),
        ("key", 2**63),
        ("key", "x" * 1025),
        ("key", None),
        ("key", [1]),
        ("key", b"w"),
        ("step", True),
    ):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("push", bytes(16), **push(**{"key": "spoilt", field: value})))
    for seq in (0, -1, HUGE * 2, None, "1"):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.ask(pack("pull", seq=seq, **pull("w"))))


def numbers_far_ahead(endpoint):
    """Settings, barriers and steps of a distant future, which would push out those of the others."""
    with Attacker(endpoint, 1) as attacker:
        told = attacker.request("optimizer", number=10**9, name="test", numbers={})
        assert told["op"] == "error" or told["version"] < 1000, told
    with Attacker(endpoint, 1) as attacker:
        refused(attacker.request("barrier", number=10**9), "the next")


def bombs(endpoint):
    """A few bytes that stand for 2^40 elements, and for products that wrap around."""
    for shape in ([2**40], [2**20, 2**20], [2**32, 2**32], [2**40] * 16, [2**40, 0, 1]):
        with Attacker(endpoint, 1) as attacker:
            refused(attacker.request("init", bytes(16), **init("bomb", shape, chunks=1)))
    for name, params in (
        ("randomk", {"ratio": 1e-12}),
        ("topk", {"ratio": 1e-12}),
        ("twobit", {"threshold": 1e-45}),
        ("powersgd", {"rank": 2**40}),
        ("none", {"x": 2**62}),
        ("qsgd", {"levels": 2**62}),
    ):
        with Attacker(endpoint, 1) as attacker:
            told = attacker.request("config", number=1, config=config(name, "none", **params))
            if told["op"] == "done":
                refused(attacker.request("push", bytes(CHUNK), **push("w", nbytes=2**40, config=1, chunks=2**20)))


def pieces(endpoint):
    """Out of order, twice, overlapping, past the end, of other lengths, and more than there may be."""
    whole = {"chunks": 2, "total": 400_000, "shape": [400_000]}
    for chunk, chunks, nbytes in ((1, 2, CHUNK), (0, 16, 10), (0, 16, CHUNK - 1), (15, 16, CHUNK), (16, 16, 10)):
        with Attacker(endpoint, 1) as attacker:
            fields = push("large", nbytes=16_000_000, chunk=chunk, chunks=chunks)
            refused(attacker.request("push", bytes(nbytes), **fields))
    with Attacker(endpoint, 1) as attacker:
        # A key of this worker alone cannot be: only worker 0's value counts, so these wait or are refused.
        told = attacker.ask(pack("init", seq=1, **init("pieces", **whole, chunk=7)), bytes(CHUNK), seconds=1)
        assert told is None or told["op"] == "error"
    with Attacker(endpoint, 1) as attacker:
        refused(attacker.request("rows", struct.pack("<2q", 0, 2**40), key="w", step=0, chunk=0, chunks=1), "row_ids")
    with Attacker(endpoint, 1) as attacker:
        # The same row again and again: a small question with a large answer.
        refused(attacker.request("rows", bytes(CHUNK), key="w", step=0, chunk=0, chunks=1), "rows")


def pieces_without_end(endpoint):
    """First pieces of states that never come whole."""
    with Attacker(endpoint, 1) as attacker:
        for seq in range(1, 200):
            header = pack("restore", seq=seq, chunk=0, chunks=2**14)
            attacker.socket.send_multipart([header, bytes(CHUNK)])
        refused(attacker.answer())


ATTACKS = [oversized_frames, headers, numbers, numbers_far_ahead, bombs, pieces, pieces_without_end]
