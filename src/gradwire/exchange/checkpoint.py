"""Checkpoints of an exchange, and their conversion to another number of workers.

    {"version": 1, "world": W, "step": s, "ranks": {"0": {"worker", "states", "sessions", "owned", "tensors"}, ...},
     "method": JSON of the compressor and its memory}

Law: plain dicts with string keys, numbers and tensors, so that ``torch.load(weights_only=True)`` and
``torch.distributed.checkpoint`` both read it. A rank's own state has its own entry alone; what differs between ranks is
below its number, because a checkpoint of many ranks keeps one tensor for each path. Merged states are a state again.

Another number of workers W': what waits is a part of the mean update, (sum of r_i) / W + shards, and stays that:
r'_j = (sum of r_i) / W + shards for every j, whose mean is the same over any number of workers. What is a mean or an
estimate of one becomes the mean, too; what is in squared units is the variance of that mean, (sum of v_i) / W^2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire.errors import ConfigError, Verbatim, nearest, require
from gradwire.kernels.stored import add_to, holds, read, stored_like

__all__ = [
    "VERSION",
    "OnResize",
    "check",
    "check_form",
    "check_names",
    "checked_rank",
    "counted",
    "folded",
    "merge_states",
    "of_rank",
    "resized",
    "state_of",
]

VERSION = 1

OnResize = Literal["error", "reshard", "reset"]


def state_of(world: int, rank: int, step: int, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a rank."""
    return {"version": VERSION, "world": world, "step": step, "ranks": {str(rank): counted(kept)}}


def counted(kept: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with the number of its tensors, by which a complete entry is recognised."""
    return {**kept, "tensors": sum(1 for _ in tensors_in(kept))}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states that several ranks saved into one.

    Args:
        states: results of ``state_dict`` on different ranks of one run, after the same step.

    Raises:
        ConfigError: the states belong to different runs or steps, or there is none.

    Example:
        >>> one, two = (state_of(2, rank, 7, {"worker": {}}) for rank in range(2))
        >>> sorted(merge_states([one, two])["ranks"])
        ['0', '1']
    """
    merged: dict[str, Any] = {}
    require(isinstance(states, Iterable), "states", "a list of what state_dict() gave on each rank", states)
    for state in states:
        check_form(state)
        merged = merged or dict(state)
        for key in ("version", "world", "step", "shards"):
            expected = merged.get(key)
            require(state.get(key) == expected, f"{key} of the states", f"{expected} in all of them", state.get(key))
        for key, depth in (("ranks", 1), ("parts", 3)):
            if key in state:
                merged[key] = united(merged[key], state[key], depth)
    require(bool(merged), "states", "at least one", Verbatim("none"))
    return merged


def united(one: Mapping[str, Any], other: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Unite the entries of two mappings; entries that both have are united in turn, down to ``depth``."""
    both = one.keys() & other.keys() if depth > 1 else ()
    return {**one, **other, **{key: united(one[key], other[key], depth - 1) for key in both}}


def check_form(state: object, parts: bool = True) -> None:
    """Refuse a state that no ``state_dict`` gave.

    Args:
        parts: take one of a model's shards, too, which has parts in place of ranks.

    Raises:
        ConfigError: the state has another form; the message says which.
    """
    allowed = "what state_dict() gave, with version, world, step and ranks"
    require(isinstance(state, Mapping), "state", allowed, state)
    found = set(map(str, state)) if isinstance(state, Mapping) else set()
    held = "ranks" in found or (parts and "parts" in found)
    require(held and {"version", "world", "step"} <= found, "state", allowed, sorted(found))


def check(state: Mapping[str, Any], world: int, on_resize: str) -> None:
    """Refuse an invalid state, and one of another number of ranks unless resizing was asked for.

    Raises:
        ConfigError
    """
    choices = ("error", "reshard", "reset")
    require(on_resize in choices, "on_resize", "'error', 'reshard' or 'reset'", on_resize)
    check_form(state, parts=False)
    require(state["version"] == VERSION, "version of the state", str(VERSION), state["version"])
    if state["world"] != world and on_resize == "error":
        raise ConfigError(
            f"world of the state must be {world}, as the group's, got {state['world']}; on_resize='reshard' keeps the "
            "mean of the residuals, on_resize='reset' drops them"
        )


def checked_rank(state: Mapping[str, Any], rank: int | str) -> Mapping[str, Any]:
    """The complete entry of one rank.

    Raises:
        ConfigError: there is no entry of the rank, or tensors of it are missing.
    """
    mine = state["ranks"].get(str(rank))
    if mine is None:
        there = sorted(state["ranks"], key=str)
        told = f"that of rank{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}" if there else "that of none"
        raise ConfigError(
            f"state must have what rank {rank} saved, got {told}: each rank loads the file that it saved itself, or "
            "all of them load what gradwire.merge_states or gradwire.read_checkpoint makes of the files of all ranks"
        )
    found = sum(1 for _ in tensors_in(mine))
    if found != mine["tensors"]:
        raise ConfigError(
            f"state of rank {rank} must have its {mine['tensors']} tensors, got {found}: "
            "torch.distributed.checkpoint.load reads only what state_dict() has already, nothing at first; "
            "use load_state_dict(gradwire.read_checkpoint(path, key))"
        )
    return mine  # type: ignore[no-any-return]


def of_rank(
    state: Mapping[str, Any], rank: int, world: int, on_resize: str, squared: Collection[str]
) -> Mapping[str, Any]:
    """Extract the part that a rank of a group keeps from a state that was checked.

    Args:
        squared: buffers in squared units.

    Raises:
        ConfigError: the state is not complete.
    """
    if state["world"] == world:
        return checked_rank(state, rank)
    return {} if on_resize == "reset" else resized(state, rank, squared)


def check_names(
    state: Mapping[str, Any], buffers: Collection[str], sizes: Mapping[str, int] | None, parts: int = 1
) -> None:
    """Refuse names of parameters that no exchange would ever send.

    Args:
        buffers: names of the buffers that the memories of the exchange keep.
        sizes: elements of each parameter; None if not known.
        parts: number of parts of each parameter, which are stored one after the other.

    Raises:
        ConfigError: a buffer or a parameter is unknown; the message names it.
    """
    for rank in state["ranks"].values():
        for buffer, tensors in rank.get("worker", {}).items():
            if tensors and buffer not in buffers:
                kept = f"keeps {', '.join(map(repr, sorted(buffers)))}" if buffers else "keeps nothing"
                raise ConfigError(
                    f"state has {buffer!r}, but the memory here {kept}: use the memory that it was saved with"
                )
            for name, tensor in tensors.items() if sizes is not None else ():
                if sizes is not None and not (name in sizes and holds(tensor, sizes[name], parts)):
                    known = f"{sizes[name]} elements" if name in sizes else nearest(name, sizes)
                    raise ConfigError(f"state has {name!r} of {tensor.numel()} elements, not the model's: {known}")


def resized(state: Mapping[str, Any], rank: int, squared: Collection[str]) -> dict[str, Any]:
    """Compute the part that rank ``rank`` keeps of a state of another number of ranks.

    Args:
        squared: buffers in squared units.

    Raises:
        ConfigError: a rank's entry is missing.
    """
    before = state["world"]
    ranks = [checked_rank(state, old) for old in range(before)]
    names = sorted(
        {(buffer, name) for each in ranks for buffer, tensors in each.get("worker", {}).items() for name in tensors}
    )
    worker: dict[str, dict[str, Tensor]] = {}
    for buffer, name in names:
        found = [each["worker"][buffer][name] for each in ranks if name in each.get("worker", {}).get(buffer, {})]
        total = torch.stack([read(tensor).double() for tensor in found]).sum(0)
        if buffer == "residual":
            add_shards(total, ranks, name, before)
        share = total / (before if buffer == "residual" else before**2 if buffer in squared else len(found))
        worker.setdefault(buffer, {})[name] = stored_like(found[0], share)
    take_from_estimates(worker, ranks)
    return {"worker": worker, "states": ranks[rank % before].get("states", {})}


def folded(entry: Mapping[str, Any], world: int) -> dict[str, Any]:
    """Make an entry whose owned shards are added to the rank's own buffers, as ``ResidualStore.retire`` does."""
    worker = {buffer: dict(tensors) for buffer, tensors in entry.get("worker", {}).items()}
    for name, buffers in entry.get("owned", {}).items():
        for buffer, views in buffers.items():
            kind, sign = (buffer, world) if name in worker.get(buffer, {}) else ("local", -world)
            for lo, view in views.items() if name in worker.get(kind, {}) else ():
                own = worker[kind][name] = worker[kind][name].clone()
                add_to(own, int(lo), view, sign)
    return counted({"worker": worker})


def add_shards(total: Tensor, ranks: Iterable[Mapping[str, Any]], name: str, world: int) -> None:
    """Add the tensors of owners, which count in the mean and so ``world`` times in the sum."""
    for lo, view in shards_of(ranks, name):
        total[lo : lo + view.numel()].add_(view, alpha=world)


def take_from_estimates(worker: Mapping[str, Mapping[str, Tensor]], ranks: Collection[Mapping[str, Any]]) -> None:
    """Subtract from the workers' estimates what an owner did not send, because their mean does not have it."""
    for name, estimate in worker.get("local", {}).items():
        for lo, view in shards_of(ranks, name) if name not in worker.get("residual", {}) else ():
            estimate[lo : lo + view.numel()].sub_(view)


def shards_of(ranks: Iterable[Mapping[str, Any]], name: str) -> Iterator[tuple[int, Tensor]]:
    for each in ranks:
        for views in each.get("owned", {}).get(name, {}).values():
            yield from ((int(lo), view) for lo, view in views.items())


def tensors_in(tree: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from tensors_in(value)
        elif isinstance(value, Tensor):
            yield value
