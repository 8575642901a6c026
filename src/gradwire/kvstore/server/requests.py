"""Table of requests: the fields of each with their checks, and its handler.

Invariants:
    * A message is checked against its row before anything is looked up.
    * A handler gets the core, the session, the fields by their names, and, of a request in pieces, the frames after the
      header. ``hello`` alone comes from a process without a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from gradwire.kvstore.protocol.messages import (
    CHUNKED,
    SEQ,
    Check,
    Outgoing,
    boolean,
    count,
    dtype,
    key,
    keys,
    mapping,
    several,
    shape,
    text,
    token,
    unit,
)
from gradwire.kvstore.server import key_requests, run_requests

__all__ = ["FIELDS", "REQUESTS", "Row"]

Answer: TypeAlias = Callable[..., list[Outgoing]]


class Row(NamedTuple):
    """A kind of request: its handler, and the check of each field."""

    answer: Answer
    fields: Mapping[str, Check]


REQUESTS: dict[str, Row] = {
    "hello": Row(
        run_requests.hello,
        {
            "version": count(0),
            "rank": count(0, 2**20),
            "world": count(1, 2**20),
            "server": count(0, 2**20),
            "servers": count(1, 2**20),
            "sync": boolean,
            "session": token,
        },
    ),
    "init": Row(
        key_requests.init,
        {
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
    ),
    "config": Row(run_requests.config, {**SEQ, "number": count(1), "config": mapping}),
    "optimizer": Row(run_requests.optimizer, {**SEQ, "number": count(1, 2**31), "name": text, "numbers": mapping}),
    "join": Row(key_requests.join, {**SEQ, "number": count(1), "keys": keys}),
    "push": Row(
        key_requests.push,
        {
            **CHUNKED,
            "items": several(unit, count(1), count(0, 2**40), count(-1, 2**40)),
            "config": count(0),
            "optimizer": count(0),
        },
    ),
    "pull": Row(key_requests.pull, {**SEQ, "items": several(unit, count(0))}),
    "follow": Row(
        key_requests.follow,
        {
            **SEQ,
            "key": key,
            "step": count(0),
            "config": count(0),
            "have": count(-1),
        },
    ),
    "rows": Row(key_requests.rows, {**CHUNKED, "key": key, "step": count(0)}),
    "staleness": Row(run_requests.staleness, {**SEQ, "steps": count(0, 2**31)}),
    "barrier": Row(run_requests.barrier, {**SEQ, "number": count(1)}),
    "why": Row(run_requests.why, {**SEQ, "of": count(1)}),
    "states": Row(run_requests.states, SEQ),
    "restore": Row(run_requests.restore, CHUNKED),
    "keep": Row(run_requests.keep, SEQ),
    "finish": Row(run_requests.finish, SEQ),
    "leave": Row(run_requests.leave, {}),
    "ping": Row(run_requests.ping, {}),
}
"""Messages that a worker may send, with their handlers and fields."""

FIELDS: Mapping[str, Mapping[str, Check]] = {op: row.fields for op, row in REQUESTS.items()}
