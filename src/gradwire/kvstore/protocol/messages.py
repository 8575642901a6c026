"""The messages between workers and servers: what they are called, what is in them, and what is refused.

A message is a header, a msgpack map with "op", and frames of raw bytes, none longer than ``CHUNK``. Large values
travel as several messages with the same "seq", each with its place ("chunk" of "chunks"); they may arrive in any order
and more than once. Nothing in a header is evaluated: names are looked up, numbers are checked, the rest is refused.

    worker                                    server
    hello      who I am                       welcome    who you are to me, and since when I run
    init       a key and, from rank 0, its value        done, with the key's version
    config     a compression, by number       done
    optimizer  name and numbers, by number    done
    push       a gradient of one step         done, when it counts
    pull       the value after one step       value, when it is there
    follow     what it is now, compressed     value
    rows       some rows of it                value
    pushes     of small keys, in one message  dones, when all of them count
    pulls      of small keys                  values, when all of them are there
    join       a list of keys, by number      done
    push_joint of all keys of a list          done, when all of them count
    pull_joint of all keys of a list          value, when all of them are there
    staleness  how far ahead one may be       done
    barrier    I am here                      done, when all are
    why        what a request waits for       value, text in UTF-8
    states     the optimizer's states         value
    restore    the optimizer's states back    done
    finish     I push no more                 done
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

VERSION = 3
CHUNK = 1 << 20
"""Bytes of a frame at most: larger ones would keep small keys waiting, and travel no faster."""

MAX_HEADER = 64 * 1024
MAX_DIMS = 16
MAX_ITEMS = 256
"""Keys of a message that names several."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip

Check = Callable[[Any], bool]


def _count(least: int, most: int = 2**62) -> Check:
    return lambda value: is_int(value, least) and value <= most


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _key(value: Any) -> bool:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
    return is_int(value, -(2**63)) and value < 2**63


def _shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_DIMS and all(_count(0, 2**40)(size) for size in value)


def _dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DTYPES


def _token(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def _mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _several(*checks: Check) -> Check:
    """A list of lists, each of whose places has its check."""

    def check(value: Any) -> bool:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
            return False
        if not all(isinstance(item, list) and len(item) == len(checks) for item in value):
            return False
        return all(all(map(each, column)) for each, column in zip(checks, zip(*value, strict=True), strict=True))

    return check


def _keys(value: Any) -> bool:
    return isinstance(value, list) and 1 < len(value) <= MAX_ITEMS and all(map(_key, value))


def _counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_ITEMS and all(map(_count(0), value))


_SEQ = {"seq": _count(1)}
_CHUNKED = {**_SEQ, "chunk": _count(0), "chunks": _count(1, 2**20)}

REQUESTS: Mapping[str, Mapping[str, Check]] = {
    "hello": {"version": _count(0), "rank": _count(0, 2**20), "world": _count(1, 2**20), "sync": _boolean,
              "session": _token},
    "init": {**_SEQ, "chunk": _count(0), "chunks": _count(0, 2**20), "key": _key, "shape": _shape, "dtype": _dtype,
             "start": _count(0), "total": _count(0), "sparse": _boolean},
    "config": {**_SEQ, "number": _count(1), "config": _mapping},
    "optimizer": {**_SEQ, "number": _count(1), "name": _text, "numbers": _mapping},
    "push": {**_CHUNKED, "key": _key, "step": _count(1), "config": _count(0), "optimizer": _count(0),
             "rows": _count(-1, 2**40)},
    "pull": {**_SEQ, "key": _key, "step": _count(0)},
    "follow": {**_SEQ, "key": _key, "step": _count(0), "config": _count(0), "have": _count(-1)},
    "rows": {**_CHUNKED, "key": _key, "step": _count(0)},
    "pushes": {**_CHUNKED, "items": _several(_key, _count(1), _count(0, CHUNK)), "config": _count(0),
               "optimizer": _count(0)},
    "pulls": {**_SEQ, "items": _several(_key, _count(0))},
    "join": {**_SEQ, "number": _count(1), "keys": _keys},
    "push_joint": {**_CHUNKED, "joint": _count(1), "step": _count(1), "config": _count(0), "optimizer": _count(0)},
    "pull_joint": {**_SEQ, "joint": _count(1), "step": _count(0)},
    "staleness": {**_SEQ, "steps": _count(0, 2**31)},
    "barrier": {**_SEQ, "number": _count(1)},
    "why": {**_SEQ, "of": _count(1)},
    "states": _SEQ,
    "restore": _CHUNKED,
    "finish": _SEQ,
    "leave": {},
    "ping": {},
}  # fmt: skip
"""What a worker may send: the fields of each, and the check of each field."""

REPLIES: Mapping[str, Mapping[str, Check]] = {
    "welcome": {"epoch": _token, "rank": _count(0), "world": _count(1), "restored": _boolean, "snapshots": _boolean},
    "done": {**_SEQ, "version": _count(0), "durable": _count(0)},
    "value": {**_CHUNKED, "version": _count(0), "durable": _count(0), "nbytes": _count(0)},
    "dones": {**_SEQ, "durable": _counts},
    "values": {**_CHUNKED, "durable": _counts, "nbytes": _count(0)},
    "error": {"seq": _count(0), "kind": _text, "text": _text},
    "pong": {"dead": lambda value: isinstance(value, list) and all(_count(0)(rank) for rank in value)},
}
"""What a server may send."""


Outgoing: TypeAlias = tuple[bytes, list[Any]]
"""To whom, and the frames."""

MAX_OPEN = 64
"""Messages in pieces that a session may have under way."""


def pack(op: str, **fields: Any) -> bytes:
    """The header of a message."""
    packed: bytes = msgpack.packb({"op": op, **fields}, use_bin_type=True)
    return packed


def unpack(
    frames: Sequence[bytes | memoryview], table: Mapping[str, Mapping[str, Check]]
) -> tuple[str, dict[str, Any], list[memoryview]]:
    """Check a message.

    Args:
        frames: the header and what follows it.
        table: ``REQUESTS`` or ``REPLIES``.

    Returns:
        The op, its fields, and the frames after the header.

    Raises:
        WireError: anything that the table does not allow.
    """
    if not frames or len(frames) > 2:
        raise WireError(f"a message has a header and at most one frame, got {len(frames)} parts")
    header, rest = memoryview(frames[0]), [memoryview(frame) for frame in frames[1:]]
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
    """Messages that ``nbytes`` bytes take; one for nothing."""
    return max(1, -(-nbytes // CHUNK))
