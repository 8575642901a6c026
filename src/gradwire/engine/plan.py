"""Plans of buckets, each made once, and the grouping of a bucket's parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Unit
from gradwire.engine.policy import Policy
from gradwire.engine.strategies.base import Session, Strategy, of_messages
from gradwire.errors import ConfigError
from gradwire.kernels import Pieces, Places
from gradwire.kernels.stored import read
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key

__all__ = [
    "Moving",
    "Named",
    "Plan",
    "bucket_text",
    "carries",
    "default_strategy",
    "grouped",
    "joined",
    "same_choices",
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
        if len(group) == 1 or None in kept.values() or 0 in sizes or not facts.takes_pieces(memory, 1.0):
            yield from group
        else:
            lows = [lo for each in group for lo in each.places.offsets]
            places = Places(group[0].places.length, lows, sizes)
            yield Moving(memory, cast("dict[str, Tensor]", kept), places, always)


@dataclass
class Plan:
    """The plan of one bucket whose mean every rank gets.

    Args:
        params: names and shapes of the bucket's parameters, in order.
        main: compressor that the plan was made for.
        units: parameters that are compressed.
        dense: mean of the parameters that travel uncompressed.
        sessions: one for each strategy.
        numel: elements of the bucket.
        moving: parameters that travel uncompressed, whose memories have work to do.
        warm_up: mean of the whole bucket, which takes the place of all sessions in the dense first steps.
    """

    params: tuple[Named, ...]
    main: Compressor
    units: list[Unit]
    dense: DenseSession
    sessions: list[Session]
    numel: int
    moving: list[Moving]
    warm_up: DenseSession
    warm: bool = False

    def __post_init__(self) -> None:
        self.names = [name for name, _ in self.params]
        sizes = [torch.Size(shape).numel() for _, shape in self.params]
        ends = accumulate(sizes)
        self.always_moving = [each for each in self.moving if each.always]
        self.places = {name: slice(end - size, end) for name, size, end in zip(self.names, sizes, ends, strict=True)}

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The ranges of the bucket that are compressed."""
        return [(unit.lo, unit.lo + unit.numel) for unit in self.units if not self.warm]

    @property
    def owned(self) -> None:
        """Return no part, because every rank gets the mean of all ranges."""
        return

    def add(self, flat: Tensor, name: str, stored: Tensor) -> None:
        """Add a stored residual of a parameter to its gradient in ``flat``."""
        own = flat[self.places[name]]
        own.add_(read(stored)[: own.numel()])

    def move(self, flat: Tensor, key: Key) -> list[Tensor]:
        """Replace ``flat`` by its mean over the ranks.

        Returns:
            Flags, each a bool of one element: whether some rank had a value that is not finite.
        """
        moving = self.moving if self.warm else self.always_moving
        for each in moving:
            # Before the mean, because a momentum is each rank's own and is averaged with the gradients.
            each.memory.compensate(each.of(flat), each.kept)
        # Started before anything is encoded, so that it travels meanwhile.
        dense = self.warm_up if self.warm else self.dense
        if dense.numel:
            dense.begin(flat)
        told = [] if self.warm else [session.run(flat, key, dense) for session in self.sessions]
        for each in moving:
            # Only the mean says whether the step counts.
            each.memory.update(each.of(flat), each.kept, dense.bad())
        # The flag of a session covers the parameters that travel uncompressed.
        told = told or [dense.bad()]
        if dense.numel:
            dense.end()
        return told


@lru_cache(maxsize=1024)
def bucket_text(names: tuple[str, ...]) -> str:
    """The parameters of a bucket, at least one, in a few words, which differ for others and for another order.

    >>> bucket_text(("weight", "bias"))
    'weight and 1 more (de06ee62)'
    """
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
    return f"{names[0]} and {len(names) - 1} more ({digest})"


def carries(strategy: Strategy, compressor: Compressor) -> bool:
    """Return whether the strategy can carry the compressor."""
    try:
        strategy.check(compressor)
    except ConfigError:
        # The check speaks to a user who named this pair; here a default is only being searched for.
        return False
    return True


def default_strategy(compressor: Compressor, world: int) -> str:
    """The default strategy: ``allreduce`` if payloads can be summed, else that of ``of_messages``."""
    if compressor.summable or capabilities.in_rounds(compressor):
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
        if compressor is None or capabilities.identity(compressor):
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
    joinable = joinable and not facts.tensorwise(unit.memory)
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
