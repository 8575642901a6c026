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
    join       a list of keys, by number      done
    pushes     of small keys, or such lists   dones, when all of them count
    pulls      of small keys, or such lists   values, when all of them are there
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

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgpack

from gradwire.errors import WireError
from gradwire.kvstore.protocol.checks import CHUNKED, SEQ, Check, boolean, count, counts, text, token

__all__ = [
    "CHUNK",
    "MAX_HEADER",
    "MAX_OPEN",
    "REPLIES",
    "VERSION",
    "Outgoing",
    "chunk_count",
    "pack",
    "unpack",
]

VERSION = 4
CHUNK = 1 << 20
"""Bytes of a frame at most: larger ones would keep small keys waiting, and travel no faster."""

MAX_HEADER = 64 * 1024


REPLIES: Mapping[str, Mapping[str, Check]] = {
    "welcome": {"epoch": token, "rank": count(0), "world": count(1), "restored": boolean, "snapshots": boolean},
    "done": {**SEQ, "version": count(0), "durable": count(0)},
    "value": {**CHUNKED, "version": count(0), "durable": count(0), "nbytes": count(0)},
    "dones": {**SEQ, "durable": counts},
    "values": {**CHUNKED, "durable": counts, "nbytes": count(0)},
    "error": {"seq": count(0), "kind": text, "text": text},
    "pong": {"dead": lambda value: isinstance(value, list) and all(count(0)(rank) for rank in value)},
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
        table: the fields of each message, and the check of each field.

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
