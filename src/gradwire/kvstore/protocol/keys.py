"""What callers hand in, as a list of keys with their tensors.

MXNet's calls take one key or a list of keys; for each key one tensor, or one for each sender. All of them become the
same thing here: ``[(key, [tensor, ...]), ...]``, a key once, in the order of its first mention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor

from gradwire.errors import ConfigError, require

__all__ = ["MAX_KEY_BYTES", "Pairs", "StoreKey", "grouped", "key_list"]

StoreKey: TypeAlias = int | str
Pairs: TypeAlias = list[tuple[StoreKey, list[Tensor]]]

MAX_KEY_BYTES = 1024
"""Of a string key in UTF-8."""

_INT64 = range(-(2**63), 2**63)


def key_list(key: Any) -> list[StoreKey]:
    """One key or several, checked.

    >>> key_list("w"), key_list([3, 5])
    (['w'], [3, 5])

    Raises:
        ConfigError: not an int of 64 bits or a string, or both kinds in one call.
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


def grouped(key: Any, value: Any, name: str) -> Pairs:
    """Each key with its tensors; a key that is named twice has the tensors of both places.

    Args:
        key: one key, or a list of them.
        value: for one key a tensor or a list of them; for several keys a list with as many of either.
        name: of the argument ``value``, for the error.

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
