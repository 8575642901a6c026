"""Compare what the ranks were told before the first gradient moves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch

from gradwire.comm._channel import Channel
from gradwire.errors import GroupError

__all__ = ["agree"]


def agree(channel: Channel, describe: Callable[[], str], device: torch.device) -> None:
    """Raise the same error on every rank unless all ranks give the same description.

    A rank whose own description fails still takes part, so that the others hear of it instead of waiting for it.
    Two all-gathers of 32 and 16 bytes; the descriptions themselves move only where they differ.

    Args:
        describe: gives the JSON text that must be equal everywhere; whatever it raises is told to all ranks.

    Raises:
        GroupError: the ranks differ; the message names the first difference and the ranks on each side.
        Exception: whatever ``describe`` raised, if it raised the same on every rank.
    """
    failure: Exception | None = None
    try:
        text = describe()
    except Exception as error:
        failure, text = error, json.dumps({"error": f"{type(error).__name__}: {error}"})
    digests = _gather(channel, hashlib.sha256(text.encode()).digest(), device)
    if len(set(digests)) > 1:
        raise GroupError(_difference(_texts(channel, text, device))) from failure
    if failure is not None:
        raise failure


def _gather(channel: Channel, data: bytes, device: torch.device) -> list[bytes]:
    rows = torch.zeros(channel.world, len(data), dtype=torch.uint8, device=device)
    rows[channel.rank].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    channel.all_gather(rows)
    return [bytes(row.tolist()) for row in rows]


def _texts(channel: Channel, text: str, device: torch.device) -> list[Any]:
    sizes = [
        int.from_bytes(size, "little") for size in _gather(channel, len(text.encode()).to_bytes(16, "little"), device)
    ]
    padded = text.encode().ljust(max(sizes), b" ")
    return [json.loads(row) for row in _gather(channel, padded, device)]


_ABSENT = object()


def _difference(texts: list[Any]) -> str:
    """The first place where two descriptions part, with the ranks that hold each value."""
    for rank, text in enumerate(texts):
        if "error" in text:
            return f"rank {rank} was configured wrongly: {text['error']}"
    path, values = _first(texts, "")
    if all(isinstance(value, list) for value in values):
        path, values = f"the length of {path}", [len(value) for value in values]
    sides: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        sides.setdefault("not there" if value is _ABSENT else repr(value), []).append(rank)
    told = "; ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" for value, ranks in sides.items()
    )
    return f"ranks were configured differently: {path} is {told}"


def _first(values: list[Any], path: str) -> tuple[str, list[Any]]:
    if all(isinstance(value, dict) for value in values):
        # The parameters of two methods differ because the methods do.
        keys = sorted({key for value in values for key in value}, key=lambda key: (key != "name", key))
        children = [(key, [value.get(key, _ABSENT) for value in values]) for key in keys]
    elif all(isinstance(value, list) for value in values) and all(values):
        children = [(str(i), [value[i] for value in values]) for i in range(min(map(len, values)))]
    else:
        return path, values
    for key, child in children:
        if any(value != child[0] for value in child):
            return _first(child, f"{path}.{key}" if path else key)
    return path, values
