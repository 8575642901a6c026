"""Checkpoints of an exchange, and their conversion to another number of workers.

    {"version": 1, "world": W, "step": s, "ranks": {"0": {"worker", "states", "sessions", "owned", "tensors"}, ...},
     "method": JSON of the compressor and its memory}

Invariants:
    * A state is made of plain dicts with string keys, numbers and tensors, so that ``torch.load(weights_only=True)``
      and ``torch.distributed.checkpoint`` both read it.
    * The state of a rank has the entry of that rank alone. Whatever differs between ranks is below the rank's number,
      because a checkpoint of many ranks keeps one tensor for each path. Merged states are a state again.
    * Another number of workers W' keeps the part of the mean update that was not sent, (sum of r_i) / W + shards: r'_j
      = (sum of r_i) / W + shards for every j, whose mean is the same for any number of workers. A buffer that is a
      mean, or an estimate of one, becomes the mean, too. A buffer in squared units becomes the variance of that mean,
      (sum of v_i) / W^2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from gradwire._short_traceback import short_traceback
from gradwire.errors import ConfigError, Verbatim, nearest, require
from gradwire.kernels.stored import add_to, holds, read, stored_like

__all__ = [
    "VERSION",
    "OnResize",
    "check",
    "check_form",
    "check_names",
    "check_on_resize",
    "checked_rank",
    "counted",
    "folded",
    "keeps_nothing",
    "loses",
    "merge_states",
    "of_rank",
    "resized",
    "state_of",
]

VERSION = 1

OnResize = Literal["error", "reshard", "reset"]

WAITING = frozenset({"residual", "momentum", "undo", "sent", "variance"})
"""Buffers that are a rank's own business: zeros there lose what was not sent yet, and nothing else."""


def state_of(world: int, rank: int, step: int, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a rank."""
    return {"version": VERSION, "world": world, "step": step, "ranks": {str(rank): counted(kept)}}


def counted(kept: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with the number of its tensors, by which a complete entry is recognised."""
    return {**kept, "tensors": sum(1 for _ in tensors_in(kept))}


@short_traceback
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
        # Parts have ranks below them, each of which may be in another state.
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


def check_on_resize(on_resize: object) -> None:
    """Refuse an invalid treatment of a state of another number of ranks, before there is a state."""
    require(on_resize in ("error", "reshard", "reset"), "on_resize", "'error', 'reshard' or 'reset'", on_resize)


def check(state: Mapping[str, Any], world: int, on_resize: str) -> None:
    """Refuse an invalid state, and one of another number of ranks unless resizing was asked for."""
    check_on_resize(on_resize)
    check_form(state, parts=False)
    require(state["version"] == VERSION, "version of the state", str(VERSION), state["version"])
    if state["world"] != world and on_resize == "error" and not keeps_nothing(state):
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
    # Counted, because torch.distributed.checkpoint.load leaves out silently what a fresh state has not made yet.
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
    if on_resize != "reset" and lacks(state, rank, world):
        first = checked_rank(state, next(iter(state["ranks"])))
        # These are alike on all ranks, which go through the same rounds with them; sessions are of so many ranks.
        alike = ("states", "sessions") if state["world"] == world else ("states",)
        # Zeros, and not nothing: what waits decides on each rank which way a step goes, and all must go the same.
        kept = first.get("worker", {})
        worker = {buffer: {name: torch.zeros_like(each) for name, each in of.items()} for buffer, of in kept.items()}
        return {"worker": worker, **{name: first.get(name, {}) for name in alike}}
    if state["world"] == world:
        return checked_rank(state, rank)
    return {} if on_resize == "reset" else resized(state, rank, squared)


def kept_by(entry: Mapping[str, Any]) -> set[str]:
    """The buffers of which an entry of a rank has tensors, whole ones or shards that it owns."""
    own = {buffer for buffer, tensors in entry.get("worker", {}).items() if tensors}
    return own | {buffer for buffers in entry.get("owned", {}).values() for buffer, views in buffers.items() if views}


def keeps_nothing(state: Mapping[str, Any]) -> bool:
    """Return whether no rank kept anything of its own, so that every rank may go on from the entry of any."""
    return bool(state["ranks"]) and not any(kept_by(checked_rank(state, rank)) for rank in state["ranks"])


def lacks(state: Mapping[str, Any], rank: int, world: int) -> bool:
    """Return whether a rank goes on without an entry of its own: because nothing was kept, or because rank 0 alone has
    saved, as most scripts do, and the others can begin with empty residuals.

    Estimates that all ranks must have alike cannot begin anew on some of them.
    """
    if str(rank) in state["ranks"] and state["world"] == world:
        return False
    if keeps_nothing(state):
        return True
    alone = [*map(str, state["ranks"])] == ["0"] and state["world"] == world > 1
    return alone and kept_by(checked_rank(state, 0)) <= WAITING


def loses(state: Mapping[str, Any], rank: int, world: int, on_resize: str) -> bool:
    """Return whether the residual of a rank is lost, because rank 0 alone has saved."""
    return on_resize != "reset" and lacks(state, rank, world) and not keeps_nothing(state)


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
        # A rank without a residual has one of zeros; an estimate is a mean over the ranks that have one.
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
