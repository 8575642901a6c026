"""Messages between workers and servers: their names, their fields, and what is refused.

A message is a header, a msgpack map with "op", and frames of raw bytes, none longer than ``CHUNK``. Large values
travel as several messages with the same "seq", each with its place ("chunk" of "chunks"); they may arrive in any order
and more than once. Nothing in a header is evaluated: names are looked up, numbers are checked, the rest is refused. A
unit is a key or a list of keys; "durable" has a step for each key or unit of the request: the pushes up to that step
need not be kept; "snapshots" is the number of the snapshot that has them, or, in welcome, of the one with which the
server began; 0 of a server without a file.

    worker                                    server
    hello      who I am                       welcome    who you are to me, and since when I run
    init       a key and, from rank 0, its value        done, with the key's version
    config     a compression, by number       done
    optimizer  name and numbers, by number    done
    join       a list of keys, by number      done
    push       units, each with a step and its bytes    done, when all of them count
    pull       units, each with a step        value, when all of them are there
    follow     a key and a step               value, compressed
    rows       some rows of a key             value
    staleness  how far ahead one may be       done
    barrier    I am here                      done, when all are
    why        what a request waits for       value, text in UTF-8
    states     the optimizer's states         value
    restore    the optimizer's states back    done
    keep       I will not repeat my pushes    done, when all of them are in the server's file
    finish     the same, and I push no more   done
    ping       I am alive                     pong
    leave      I am finished, and gone
                                              error      what was wrong, for a seq or for the session
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgpack
import torch

from gradwire.errors import WireError, is_int
from gradwire.kvstore.protocol.keys import MAX_KEY_BYTES

__all__ = [
    "CHUNK",
    "DTYPES",
    "MAX_HEADER",
    "MAX_ITEMS",
    "MAX_OPEN",
    "REPLIES",
    "REQUESTS",
    "VERSION",
    "Outgoing",
    "chunk_count",
    "pack",
    "unpack",
]

MAX_DIMS = 16

MAX_ITEMS = 256
"""Keys of a message that names several."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
}

Check = Callable[[Any], bool]


def count(least: int, most: int = 2**62) -> Check:
    """Make a check for an integer in a range."""
    return lambda value: is_int(value, least) and value <= most


def boolean(value: Any) -> bool:
    """Check a truth value."""
    return isinstance(value, bool)


def key(value: Any) -> bool:
    """Check a key, which is a name or a number."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
    return is_int(value, -(2**63)) and value < 2**63


def unit(value: Any) -> bool:
    """Check a unit: a key, or a list of keys by its number, which stands in a list of its own."""
    return (len(value) == 1 and count(1)(value[0])) if isinstance(value, list) else key(value)


def shape(value: Any) -> bool:
    """Check the sizes of a tensor."""
    return isinstance(value, list) and len(value) <= MAX_DIMS and all(count(0, 2**40)(size) for size in value)


def dtype(value: Any) -> bool:
    """Check the name of a dtype."""
    return isinstance(value, str) and value in DTYPES


def token(value: Any) -> bool:
    """Check a token, 16 bytes that a process chose."""
    return isinstance(value, bytes) and len(value) == 16


def mapping(value: Any) -> bool:
    """Check a mapping with names as keys."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def text(value: Any) -> bool:
    """Check a text."""
    return isinstance(value, str)


def several(*checks: Check) -> Check:
    """Make a check for a list of lists, with a check for each place of the inner lists."""

    def check(value: Any) -> bool:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
            return False
        if not all(isinstance(item, list) and len(item) == len(checks) for item in value):
            return False
        return all(all(map(each, column)) for each, column in zip(checks, zip(*value, strict=True), strict=True))

    return check


def keys(value: Any) -> bool:
    """Check several keys."""
    return isinstance(value, list) and 1 < len(value) <= MAX_ITEMS and all(map(key, value))


def counts(value: Any) -> bool:
    """Check integers >= 0, as many as a message has keys."""
    return isinstance(value, list) and len(value) <= MAX_ITEMS and all(map(count(0), value))


SEQ = {"seq": count(1)}
"""Fields of a request that is answered."""

CHUNKED = {**SEQ, "chunk": count(0), "chunks": count(1, 2**20)}
"""Fields of a request in pieces."""

VERSION = 7

CHUNK = 1 << 20
"""Bytes of a frame at most: larger ones would keep small keys waiting, and travel no faster."""

MAX_HEADER = 64 * 1024

REQUESTS: Mapping[str, Mapping[str, Check]] = {
    "hello": {
        "version": count(0),
        "rank": count(0, 2**20),
        "world": count(1, 2**20),
        "server": count(0, 2**20),
        "servers": count(1, 2**20),
        "sync": boolean,
        "session": token,
    },
    "init": {
        **SEQ,
        "chunk": count(0),
        "chunks": count(0, 2**20),
        "key": key,
        "shape": shape,
        "dtype": dtype,
        "start": count(0),
        "total": count(0),
        "sparse": boolean,
    },
    "config": {**SEQ, "number": count(1), "config": mapping},
    "optimizer": {**SEQ, "number": count(1, 2**31), "name": text, "numbers": mapping},
    "join": {**SEQ, "number": count(1), "keys": keys},
    "push": {
        **CHUNKED,
        "items": several(unit, count(1), count(0, 2**40), count(-1, 2**40)),
        "config": count(0),
        "optimizer": count(0),
    },
    "pull": {**SEQ, "items": several(unit, count(0))},
    "follow": {**SEQ, "key": key, "step": count(0), "config": count(0), "have": count(-1)},
    "rows": {**CHUNKED, "key": key, "step": count(0)},
    "staleness": {**SEQ, "steps": count(0, 2**31)},
    "barrier": {**SEQ, "number": count(1)},
    "why": {**SEQ, "of": count(1)},
    "states": SEQ,
    "restore": CHUNKED,
    "keep": SEQ,
    "finish": SEQ,
    "leave": {},
    "ping": {},
}
"""Messages that a worker may send, with their fields."""

REPLIES: Mapping[str, Mapping[str, Check]] = {
    "welcome": {
        "epoch": token,
        "run": token,
        "rank": count(0),
        "world": count(1),
        "snapshots": count(0),
        "bounded": boolean,
    },
    "done": {**SEQ, "version": count(0), "durable": counts, "snapshots": count(0)},
    "value": {**CHUNKED, "durable": counts, "snapshots": count(0), "nbytes": count(0)},
    "error": {"seq": count(0), "kind": text, "text": text},
    "pong": {"dead": lambda value: isinstance(value, list) and all(count(0)(rank) for rank in value), "trouble": text},
}
"""Messages that a server may send, with their fields."""

Outgoing: TypeAlias = tuple[bytes, list[Any]]
"""The peer to whom a message goes, and its frames."""

MAX_OPEN = 64
"""Messages in pieces that a session may have under way."""


def pack(op: str, **fields: Any) -> bytes:
    """Encode the header of a message."""
    packed: bytes = msgpack.packb({"op": op, **fields}, use_bin_type=True)
    return packed


def unpack(
    frames: Sequence[bytes | memoryview], table: Mapping[str, Mapping[str, Check]]
) -> tuple[str, dict[str, Any], list[memoryview]]:
    """Decode a message and check it.

    Args:
        frames: the header and what follows it.
        table: the fields of each message, and the check of each field.

    Returns:
        The op, its fields, and the frames after the header.

    Raises:
        WireError: anything that the table does not allow.
    """
    if not frames or len(frames) > 2:
        raise WireError(f"a message has a header and at most one frame, got {len(frames)} parts")
    header, rest = memoryview(frames[0]), [memoryview(frame) for frame in frames[1:]]
    # Before anything is parsed: anybody who can connect may have sent it.
    if len(header) > MAX_HEADER or any(frame.nbytes > CHUNK for frame in rest):
        raise WireError(f"a header has at most {MAX_HEADER} bytes, a frame {CHUNK}")
    try:
        fields = msgpack.unpackb(header, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"a header is msgpack: {type(error).__name__}") from None
    op = fields.pop("op", None) if isinstance(fields, dict) else None
    checks = table.get(op) if isinstance(op, str) else None
    if checks is None:
        raise WireError(f"a header has an op, one of {', '.join(table)}")
    if fields.keys() != checks.keys():
        raise WireError(f"{op!r} has the fields {', '.join(checks) or 'none'}")
    for name, check in checks.items():
        if not check(fields[name]):
            raise WireError(f"{op!r} has a bad {name}")
    return str(op), fields, rest


def chunk_count(nbytes: int) -> int:
    """The number of messages for ``nbytes`` bytes; one for none."""
    return max(1, -(-nbytes // CHUNK))
