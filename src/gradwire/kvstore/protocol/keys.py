"""Keys: arguments of callers as lists of keys with their tensors, and the placement of keys on servers.

MXNet's calls take one key or a list of keys; for each key one tensor, or one for each sender. All of them become the
same thing here: ``[(key, [tensor, ...]), ...]``, a key once, in the order of its first mention.

A key of ``bound`` elements or more is cut over all servers, at MXNet's boundaries: where it is compressed, at whole
words of codes, so that a part's payload is the same bytes as that stretch of the whole. A smaller key lives on one
server, chosen by a hash of its name that every worker computes alike, whatever the order in which it named its keys.
The cut depends on the key's size, the number of servers and the compressor's alignment, which are known before the
first push; a push and a pull always agree, because both ask here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from gradwire.errors import ConfigError, is_int, require

__all__ = ["BIGARRAY_BOUND", "MAX_KEY_BYTES", "KeyPart", "Pairs", "StoreKey", "found", "grouped", "key_list", "place"]

BIGARRAY_BOUND = 1_000_000
"""Elements from which on a key is cut; MXNet's default."""


@dataclass(frozen=True)
class KeyPart:
    """Elements [start, stop) of a key, on one server."""

    server: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


def place(key: StoreKey, numel: int, servers: int, *, bound: int = BIGARRAY_BOUND, alignment: int = 1) -> list[KeyPart]:
    """Place the parts of a key on servers; in order, the parts are the whole key.

    Args:
        key: name of the key.
        numel: elements, >= 0.
        servers: number of servers, >= 1.
        bound: elements from which on the key is cut, >= 1.
        alignment: parts start at multiples of so many elements: 16 for a 2-bit code, 32 for a 1-bit code, 1 for
            float32; 0: the key cannot be cut.

    Raises:
        ConfigError: a number is outside its range.

    Example:
        >>> [part.numel for part in place("w", 1_000_001, 2, alignment=16)]
        [500016, 499985]
        >>> len(place("b", 1000, 2))
        1
    """
    require(is_int(servers, 1), "servers", "an integer >= 1", servers)
    require(is_int(bound, 1), "bound", "an integer >= 1", bound)
    if numel < bound or alignment == 0:
        return [KeyPart(home(key, servers), 0, numel)]
    words = -(-numel // alignment)
    edges = [min(numel, alignment * rounded(words * i, servers)) for i in range(servers + 1)]
    parts = [KeyPart(server, edges[server], edges[server + 1]) for server in range(servers)]
    return [part for part in parts if part.numel]


def home(key: StoreKey, servers: int) -> int:
    """The server of a small key: by a hash of its name, so that keys spread evenly whatever their pattern."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % servers


def rounded(a: int, b: int) -> int:
    """Divide a by b and round to the nearest integer, halves up, as C's ``round`` for positive numbers without its
    overflow.
    """
    return (2 * a + b) // (2 * b)


StoreKey: TypeAlias = int | str

Pairs: TypeAlias = list[tuple[StoreKey, list[Tensor]]]

Known = TypeVar("Known")

MAX_KEY_BYTES = 1024
"""The most bytes of a string key in UTF-8."""

_INT64 = range(-(2**63), 2**63)


def key_list(key: Any) -> list[StoreKey]:
    """Check one key or several, and return them as a list.

    >>> key_list("w"), key_list([3, 5])
    (['w'], [3, 5])

    Raises:
        ConfigError: a key is neither an int of 64 bits nor a string, or one call has both kinds.
    """
    keys = list(key) if isinstance(key, list | tuple) else [key]
    for each in keys:
        require(isinstance(each, int | str), "key", "an int or a str, or a list of them", each)
        if isinstance(each, str):
            require(_fits(each), "key", f"at most {MAX_KEY_BYTES} bytes of UTF-8", each)
        else:
            require(each in _INT64, "key", "an integer of 64 bits", each)
    kinds = {isinstance(each, str) for each in keys}
    require(len(kinds) < 2, "key", "all int or all str", keys)
    return [each if isinstance(each, str) else int(each) for each in keys]


def found(keys: Mapping[StoreKey, Known], key: StoreKey) -> Known:
    """Find what is known of a key.

    Raises:
        ConfigError: the key was never initialised.
    """
    if key not in keys:
        raise ConfigError(f"key {key!r} must be initialised before it is used: call init first")
    return keys[key]


def grouped(key: Any, value: Any, name: str) -> Pairs:
    """Group tensors by key; a key that is named twice has the tensors of both places.

    Args:
        key: one key, or a list of them.
        value: tensor or list of them for one key; for several keys a list with as many of either.
        name: name of the argument ``value``, for the error.

    Raises:
        ConfigError: lengths that do not fit, or something that is no tensor.

    Example:
        >>> import torch
        >>> [(key, len(tensors)) for key, tensors in grouped([1, 2, 1], [torch.ones(2)] * 3, "value")]
        [(1, 2), (2, 1)]
    """
    keys = key_list(key)
    several = isinstance(key, list | tuple)
    if several:
        fits = isinstance(value, list | tuple) and len(value) == len(keys)
        require(fits, name, f"a list of {len(keys)}, one for each key", _brief(value))
    pairs: dict[StoreKey, list[Tensor]] = {}
    for each, tensors in zip(keys, value if several else [value], strict=True):
        pairs.setdefault(each, []).extend(_tensors(each, tensors, name))
    return list(pairs.items())


def _tensors(key: StoreKey, value: Any, name: str) -> Sequence[Tensor]:
    tensors = list(value) if isinstance(value, list | tuple) else [value]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise ConfigError(f"{name} of key {key!r} must be a tensor or a list of them, got {_brief(value)}")
    return tensors


def _fits(key: str) -> bool:
    try:
        return len(key.encode()) <= MAX_KEY_BYTES
    except UnicodeEncodeError:
        return False


def _brief(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__
