"""The fields of messages: what each may be. Nothing in a header is evaluated; what is not allowed is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwire.errors import is_int
from gradwire.kvstore.protocol.keys import MAX_KEY_BYTES

__all__ = [
    "CHUNKED", "DTYPES", "MAX_ITEMS", "SEQ", "Check", "boolean", "count", "counts", "dtype", "key", "keys", "mapping",
    "several", "shape", "text", "token", "unit",
]  # fmt: skip

MAX_DIMS = 16

MAX_ITEMS = 256
"""Keys of a message that names several."""

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)}  # fmt: skip

Check = Callable[[Any], bool]


def count(least: int, most: int = 2**62) -> Check:
    """Make a check of an integer in a range."""
    return lambda value: is_int(value, least) and value <= most


def boolean(value: Any) -> bool:
    """A truth value."""
    return isinstance(value, bool)


def key(value: Any) -> bool:
    """A name or a number of a key."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES
    return is_int(value, -(2**63)) and value < 2**63


def unit(value: Any) -> bool:
    """A key, or a list of keys: its number, in a list of its own."""
    return (len(value) == 1 and count(1)(value[0])) if isinstance(value, list) else key(value)


def shape(value: Any) -> bool:
    """The sizes of a tensor."""
    return isinstance(value, list) and len(value) <= MAX_DIMS and all(count(0, 2**40)(size) for size in value)


def dtype(value: Any) -> bool:
    """The name of a type."""
    return isinstance(value, str) and value in DTYPES


def token(value: Any) -> bool:
    """16 bytes that a process chose."""
    return isinstance(value, bytes) and len(value) == 16


def mapping(value: Any) -> bool:
    """Names and what they stand for."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def text(value: Any) -> bool:
    """Text."""
    return isinstance(value, str)


def several(*checks: Check) -> Check:
    """Make a check of a list of lists, each of whose places has its own."""

    def check(value: Any) -> bool:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
            return False
        if not all(isinstance(item, list) and len(item) == len(checks) for item in value):
            return False
        return all(all(map(each, column)) for each, column in zip(checks, zip(*value, strict=True), strict=True))

    return check


def keys(value: Any) -> bool:
    """Several keys."""
    return isinstance(value, list) and 1 < len(value) <= MAX_ITEMS and all(map(key, value))


def counts(value: Any) -> bool:
    """Integers >= 0, as many as a message has keys."""
    return isinstance(value, list) and len(value) <= MAX_ITEMS and all(map(count(0), value))


SEQ = {"seq": count(1)}
"""Of a request that is answered."""

CHUNKED = {**SEQ, "chunk": count(0), "chunks": count(1, 2**20)}
"""Of one in pieces."""
