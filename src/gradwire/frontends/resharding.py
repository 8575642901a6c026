"""Division of parameters by rows, and checkpoints of models that are divided: of one shard each, and divided anew.

    {"version", "world": R, "step", "shards": S, "parts": {"0": {"ranks": {"0": ..., ...}}, ...}}

Invariants:
    * A rank of a replica group keeps what belongs to its shard. The state says which shard that is, or the checkpoint
      of one shard would take the place of another's.
    * The rows lie one shard after the other with the padding at the end, so the elements are the same flat vector for
      any number of shards.
    * The buffers kept for each element are cut anew. States of methods have the shape of a shard, and begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.checkpoint import OnResize, checked_rank, counted, folded, keeps_nothing
from gradwire.engine.shards import Sharded
from gradwire.errors import ConfigError, require
from gradwire.kernels.stored import form_of, read, stored_like

__all__ = ["of_shard", "recut", "repadded"]

Entry = Mapping[str, Any]
"""The entry of one rank."""


def of_shard(state: Mapping[str, Any], shard: int, shards: int, parts: int = 1) -> dict[str, Any]:
    """The state of a rank in one shard's replica group, as a checkpoint of all shards has it.

    Args:
        parts: number of parts into which tensor parallelism has cut the parameters before; the shards of all of them
            are counted, those of one part after those of another.
    """
    rest = {key: value for key, value in state.items() if key != "ranks"}
    cut = {"tensor_parts": parts} if parts > 1 else {}
    return {**rest, "shards": shards, **cut, "parts": {str(shard): {"ranks": state["ranks"]}}}


def repadded(state: Mapping[str, Any], cuts: Mapping[str, Sharded]) -> dict[str, Any]:
    """Convert a state whose ranks keep whole parameters to the padding of these cuts; unknown names stay.

    Raises:
        ConfigError: tensors of a rank are missing.
    """

    def fit(name: str, tensors: Sequence[Tensor]) -> Tensor:
        if name not in cuts:
            return tensors[0]
        flat = cuts[name].among(int(state["world"])).taken(tensors[0])
        return cuts[name].stored(cuts[name].pad(flat, state["world"]), form_of(tensors[0]))

    return {**state, "ranks": {rank: joined([checked_rank(state, rank)], fit) for rank in state["ranks"]}}


def recut(
    state: Mapping[str, Any],
    shard: int,
    shards: int,
    cuts: Mapping[str, Sharded],
    on_resize: OnResize,
    parts: int = 1,
) -> Mapping[str, Any]:
    """Make the state of one shard's replica group from the states of ``of_shard``, of the same or another number of
    shards.

    Args:
        shards: number of shards of all parts together, as ``of_shard`` counts them.
        parts: number of parts into which tensor parallelism has cut the parameters.

    Raises:
        ConfigError: the state has another number of shards and ``on_resize`` is "error"; it has another number of
            parts; a shard, a rank or tensors of one are missing.
    """
    whole = {"shards", "parts", "world"} <= set(state)
    require(whole, "state", "of a model with replicate=, with world, shards and parts", sorted(map(str, state)))
    rest = {key: value for key, value in state.items() if key not in ("shards", "parts", "tensor_parts")}
    before, same = state["shards"], state.get("tensor_parts", 1) == parts
    if before == shards and same:
        return {**rest, "ranks": ranks_of(state, shard)}
    if on_resize == "reset":
        # However many replicas there are, none of these entries can be taken.
        return {**rest, "world": 0, "ranks": {}}
    if on_resize == "error":
        raise ConfigError(
            f"shards of the state must be {shards}, as the mesh's, got {before}; on_resize='reshard' cuts the "
            "residuals anew, on_resize='reset' drops them"
        )
    if not same:
        raise ConfigError(
            f"parts into which tensor parallelism cuts must be {parts}, as those of the model, got "
            f"{state.get('tensor_parts', 1)} in the state: what waits cannot be cut anew along them; "
            "on_resize='reset' drops it"
        )
    part, own, each_before = shard // (shards // parts), shard % (shards // parts), before // parts

    def fit(name: str, tensors: Sequence[Tensor]) -> Tensor:
        require(name in cuts, "parameters of the state", "those of the model", name)
        chunk = cuts[name].among(len(tensors)).chunk
        flat = torch.cat([read(tensor, chunk) for tensor in tensors])
        return stored_like(tensors[0], cuts[name].pad(flat, each_before).view(shards // parts, -1)[own])

    old = [ranks_of(state, part * each_before + each) for each in range(each_before)]
    world = state["world"]
    ranks = {
        str(rank): joined([folded(checked_rank({"ranks": each}, rank), world) for each in old], fit)
        for rank in range(world)
    }
    return {**rest, "ranks": ranks}


def ranks_of(state: Mapping[str, Any], shard: int) -> Mapping[str, Entry]:
    parts = state["parts"]
    part = parts.get(str(shard))
    if part is None and parts and all(map(keeps_nothing, parts.values())):
        part = next(iter(parts.values()))
    require(part is not None, "parts of the state", f"with shard {shard}: save on every rank", sorted(parts))
    return part["ranks"]  # type: ignore[no-any-return]


def joined(entries: Sequence[Entry], fit: Callable[[str, Sequence[Tensor]], Tensor]) -> Entry:
    """Join the buffers of one rank from those in the entries."""
    worker = {
        buffer: {name: fit(name, [entry["worker"][buffer][name] for entry in entries]) for name in tensors}
        for buffer, tensors in entries[0].get("worker", {}).items()
    }
    return counted({"worker": worker})
