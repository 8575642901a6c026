"""Plans of buckets, each made once, and the grouping of a bucket's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire.comm.base import Session, Strategy, of_messages
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.errors import ConfigError
from gradwire.exchange.policy import Policy
from gradwire.group.dense import DenseSession
from gradwire.group.part import Unit
from gradwire.kernels import Pieces, Places
from gradwire.memory.base import Memory

__all__ = [
    "Moving",
    "Named",
    "Plan",
    "carries",
    "default_strategy",
    "grouped",
    "joined",
    "same_choices",
    "try_extend",
    "try_retune",
]

Named = tuple[str, tuple[int, ...]]
"""A parameter's name and shape."""


@dataclass
class Moving:
    """Parameters whose memory has work to do although they travel dense: one, or several that one call works on.

    Args:
        memory: memory that has work to do.
        kept: tensors of the memory, flat; of several parameters ``Pieces``.
        places: places of the parameters in the bucket.
        always: true: the parameters travel dense in every step of this plan, not only in the warm-up.
    """

    memory: Memory
    kept: Mapping[str, Tensor]
    places: Places
    always: bool

    def of(self, flat: Tensor) -> Tensor:
        """Return the parameters of ``flat``."""
        pieces = Pieces(flat, self.places)
        return pieces.each()[0] if len(pieces) == 1 else cast(Tensor, pieces)


def joined(moving: Sequence[Moving]) -> Iterator[Moving]:
    """Join the parameters that one call can work on."""
    groups: dict[tuple[Memory, bool], list[Moving]] = {}
    for each in moving:
        groups.setdefault((each.memory, each.always), []).append(each)
    for (memory, always), group in groups.items():
        kept = {name: Pieces.of([each.kept[name] for each in group]) for name in memory.buffers}
        sizes = [size for each in group for size in each.places.sizes]
        if len(group) == 1 or None in kept.values() or 0 in sizes or not memory.takes_pieces(1.0):
            yield from group
        else:
            lows = [lo for each in group for lo in each.places.offsets]
            places = Places(group[0].places.length, lows, sizes)
            yield Moving(memory, cast("dict[str, Tensor]", kept), places, always)


@dataclass
class Plan:
    """The sessions of one bucket. ``main`` is the compressor it was built for."""

    params: tuple[Named, ...]
    main: Compressor
    units: list[Unit]
    dense: DenseSession
    sessions: list[Session]
    numel: int
    moving: list[Moving]

    @property
    def names(self) -> list[str]:
        """The names of its parameters, in order."""
        return [name for name, _ in self.params]


def carries(strategy: Strategy, compressor: Compressor) -> bool:
    """Return whether the strategy can carry the compressor."""
    try:
        strategy.check(compressor)
    except ConfigError:
        return False
    return True


def default_strategy(compressor: Compressor, world: int) -> str:
    """The default strategy: ``allreduce`` if payloads can be summed, else ``allgather``, or with many workers
    ``two_phase``.
    """
    if compressor.summable or isinstance(compressor, MultiRound):
        return "allreduce"
    return of_messages(compressor, world)


def grouped(
    params: Sequence[Named],
    main: Callable[[str], Compressor],
    policy: Policy,
    memory_for: Callable[[Compressor], Memory],
) -> tuple[list[Unit], list[tuple[int, int]], int]:
    """Find the units to compress, the ranges that travel dense, and the number of elements.

    Args:
        main: the compressor of a parameter that has no override, by its name.
    """
    units: list[Unit] = []
    dense: list[tuple[int, int]] = []
    lo = 0
    for name, shape in params:
        numel = torch.Size(shape).numel()
        compressor = policy.choose(name, shape, main(name))
        if compressor is None or compressor.identity:
            dense.append((lo, lo + numel))
        elif not (units and try_extend(units[-1], compressor, name, numel, lo)):
            units.append(Unit(((name, numel),), tuple(shape), lo, compressor, memory_for(compressor)))
        lo += numel
    return units, dense, lo


def same_choices(plan: Plan, main: Compressor, policy: Policy) -> bool:
    """Return whether the same parameters travel dense; a ratio can pass the point at which compression pays."""
    return all(
        (policy.choose(name, shape, plan.main) is None) == (policy.choose(name, shape, main) is None)
        for name, shape in plan.params
    )


def try_extend(unit: Unit, compressor: Compressor, name: str, numel: int, lo: int) -> bool:
    """Join a parameter to the unit before it, if no code depends on where a tensor starts."""
    # Identity, not equality: a schedule changes the main compressor, and not an override that is equal to it today.
    joinable = compressor.elementwise and not compressor.random and compressor is unit.compressor
    joinable = joinable and not unit.memory.tensorwise
    # The blocks of codes begin at each parameter's first element, so what is before it must be whole blocks.
    whole = unit.numel % unit.memory.form.grain == 0
    if not joinable or not whole or unit.lo + unit.numel != lo:
        return False
    unit.members += ((name, numel),)
    unit.shape = (unit.numel + numel,)
    return True


def try_retune(plan: Plan, main: Compressor) -> bool:
    """Replace the compressor of a plan by a scheduled one, if no layout changes."""
    tuned = [unit for unit in plan.units if unit.compressor is plan.main]
    if any(main.layout(unit.shape) != unit.compressor.layout(unit.shape) for unit in tuned):
        return False
    for unit in tuned:
        unit.compressor = main
    plan.main = main
    return True
