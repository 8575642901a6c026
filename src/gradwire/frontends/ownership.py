"""Ownership of gradients: no parameter's gradient is averaged twice over the same ranks.

Invariants:
    * An exchange owns the parameters that it was prepared for until its state is closed or forgotten. torch's wrappers
      own theirs as long as they live.
    * Of two DDP models around one module only that whose forward pass is called averages, so a hook conflicts only with
      a second hook on the same model.
    * Two owners whose groups share no rank but this one do not conflict: DDP inside a node and local steps between
      nodes average different things.

Why:
    A gradient that is averaged twice costs its traffic twice, and the second exchange compresses what the first has
    made equal everywhere.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError

__all__ = [
    "Caller",
    "Ranks",
    "averaged_by_ddp",
    "classes_of",
    "conflict_with_ddp",
    "hooked",
    "is_sharded",
    "on_rank",
    "own",
    "owners_of",
    "refuse_owned",
    "release",
]

Ranks = frozenset[int]
"""Global ranks of a group; empty: a meeting, which has none."""


class Caller(NamedTuple):
    """The caller that wants to exchange, as error messages name it.

    Args:
        name: the user's call.
        under: the wrapper whose own averaging it replaces; None: there must be no wrapper.
        freed: advice that says how its ownership ends.
        sharded: further advice where the model is sharded.
    """

    name: str
    under: Literal["ddp", "fsdp"] | None = None
    freed: str = "give it another method with state.change(...), or close it first with state.close()"
    sharded: str = ""


class Owner(NamedTuple):
    """An exchange that was prepared, and its parameters; it counts as long as its carrier lives."""

    caller: Caller
    ranks: Ranks
    params: dict[int, weakref.ref[Tensor]]
    carrier: weakref.ref[object] | None


_owners: weakref.WeakKeyDictionary[Exchange, Owner] = weakref.WeakKeyDictionary()


def own(
    exchange: Exchange, caller: Caller, params: Mapping[str, Tensor], ranks: Ranks, carrier: object | None = None
) -> None:
    """Note that this exchange averages the gradients of these parameters.

    Args:
        carrier: object that makes the exchange run, such as the DDP model or the optimizer; None: the exchange itself
            is enough.
    """
    if caller.under == "fsdp":
        # Sharded parameters are known as such, and to_empty cannot swap one that has a weak reference.
        return
    refs = {id(param): weakref.ref(param) for param in params.values()}
    _owners[exchange] = Owner(caller, ranks, refs, None if carrier is None else weakref.ref(carrier))


def release(exchange: Exchange) -> None:
    """Note that the exchange averages nothing any more."""
    _owners.pop(exchange, None)


def refuse_owned(caller: Caller, params: Mapping[str, Tensor], ranks: Ranks, carrier: object | None = None) -> None:
    """Refuse parameters whose gradients are averaged already.

    Args:
        ranks: ranks over which the caller wants to average.
        carrier: object that makes the caller's exchange run.

    Raises:
        ConfigError: a parameter is averaged already; the message names it, its owner, and the call that is right.
    """
    if conflict(caller, params, ranks, carrier) is None:
        return
    # A wrapper or a state that nobody can reach any more may wait for the collector, in a cycle.
    gc.collect()
    found = conflict(caller, params, ranks, carrier)
    if found is not None:
        raise ConfigError(found)


def conflict(caller: Caller, params: Mapping[str, Tensor], ranks: Ranks, carrier: object | None) -> str | None:
    """Describe a conflict in a sentence, which must hold no reference to the other owner."""
    start = f"{caller.name} must be given parameters whose gradients nobody else averages, got "
    for name, param in params.items():
        if caller.under != "fsdp" and is_sharded(param):
            return (
                f"{start}{name!r} of a sharded model: use gradwire.compress_fsdp for fully_shard, "
                f"gradwire.compress_fsdp1 for FullyShardedDataParallel{caller.sharded}"
            )
        for owner in owners_of(param):
            hooks = caller.under == owner.caller.under == "ddp"
            other = hooks and owner.carrier is not None and owner.carrier() is not carrier
            if overlap(owner.ranks, ranks) and not other:
                return f"{start}{name!r}, which {owner.caller.name} exchanges already: {owner.caller.freed}"
    return None if caller.under == "ddp" else conflict_with_ddp(caller, params, ranks)


def conflict_with_ddp(caller: Caller, params: Mapping[str, Tensor], ranks: Ranks) -> str | None:
    """Describe in a sentence that a DDP model averages one of these parameters over some of these ranks."""
    for reduced, group in wrapped():
        for name, param in params.items():
            if id(param) in reduced and overlap(group, ranks):
                return (
                    f"{caller.name} must be given parameters whose gradients nobody else averages, got {name!r}, which "
                    "DistributedDataParallel averages: use gradwire.compress_ddp on the DDP model, or "
                    f"{caller.name} on the module without DDP"
                )
    return None


def owners_of(param: Tensor) -> list[Owner]:
    """The owners that average a parameter's gradient now."""
    return [
        owner
        for owner in list(_owners.values())
        if (ref := owner.params.get(id(param))) is not None
        and ref() is param
        and (owner.carrier is None or owner.carrier() is not None)
    ]


def is_sharded(param: Tensor) -> bool:
    """Return whether either form of FSDP has the parameter: a DTensor, or one that was flattened."""
    return hasattr(param, "device_mesh") or getattr(param, "_fsdp_flattened", False)


def on_rank(tensor: Tensor) -> Tensor:
    """The elements of a tensor that this rank holds, in the memory of the tensor itself."""
    # Asked for anew each time: FSDP gives a parameter other memory, as at its first forward pass.
    return cast(Tensor, getattr(tensor, "_local_tensor", tensor))


def overlap(one: Ranks, other: Ranks) -> bool:
    return one == other or len(one & other) > 1


def averaged_by_ddp(params: Iterable[Tensor]) -> bool:
    """Return whether a living DDP model averages the gradient of one of these."""
    ids = {id(param) for param in params}
    return any(not ids.isdisjoint(reduced) for reduced, _ in wrapped())


def hooked(state: object) -> DistributedDataParallel | None:
    """The living DDP model that has a communication hook of this state; None: there is none."""
    return next((each for each in living() if any(own is state for _, own in each._comm_hooks)), None)


def wrapped() -> Iterator[tuple[set[int], Ranks]]:
    """The living DDP models: ids of the parameters that each averages, and its ranks."""
    for each in living():
        try:
            ranks = frozenset(dist.get_process_group_ranks(each.process_group))
        except (KeyError, RuntimeError, ValueError):
            continue  # Its group was destroyed: it can average no more.
        yield {id(param) for param in each._module_parameters if param.requires_grad}, ranks


def living() -> Iterator[DistributedDataParallel]:
    # A parameter does not know of the reducer that waits for it, and torch keeps no list of DDP models. An object
    # refers to its class, and the collector finds that in a quarter of the time in which it lists all objects.
    for each in gc.get_referrers(*classes_of(DistributedDataParallel)):
        if issubclass(type(each), DistributedDataParallel) and hasattr(each, "reducer"):
            yield each


def classes_of(base: type[Any]) -> Iterator[type[Any]]:
    """Yield a class and all that are derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from classes_of(derived)
