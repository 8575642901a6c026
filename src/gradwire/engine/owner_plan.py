"""The plan of a bucket whose parts go to their owners, as FSDP divides the gradients of a module.

Residuals are kept by parameter, one owner's rows after the other's, so each owner has a piece of every parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.engine.exchange import Exchange
from gradwire.engine.methods import Methods
from gradwire.engine.part import Piece, Unit
from gradwire.engine.shards import Sharded
from gradwire.engine.step import prepare
from gradwire.engine.strategies.base import Site
from gradwire.engine.strategies.reduce_scatter import HostScatterSession, ScatterSession
from gradwire.errors import ConfigError, require
from gradwire.kernels.stored import part_of, shaped
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.transport.channel import Channel
from gradwire.transport.hosts import hosts_of
from gradwire.vocabulary import Key

__all__ = ["OwnerPlan", "check_method", "check_methods", "make_owner_plan", "wanted_of"]


@dataclass
class OwnerPlan:
    """The plan of one bucket of which every rank gets a part.

    Args:
        shards: parameters of the bucket, each with its division.
        session: messages to the owners.
        channel: channel over the ranks among which the bucket is divided.
        measures: true where the noise of the code may be measured: the exchange's own channel is used.
    """

    shards: Sequence[Sharded]
    session: ScatterSession | HostScatterSession
    channel: Channel
    measures: bool

    def __post_init__(self) -> None:
        self.names = [each.name for each in self.shards]
        parts = [
            [
                (piece.lo, piece.lo + piece.numel)
                for piece in part.pieces
                if not capabilities.identity(piece.unit.compressor)
            ]
            for part in self.session.parts
        ]
        self.measured = list(chain.from_iterable(parts)) if self.measures else []
        each, rank = len(parts[0]), self.channel.rank
        self.owned = slice(rank * each, (rank + 1) * each)
        ends = [sum(each.chunk for each in self.shards[: i + 1]) for i in range(len(self.shards))]
        self.places = {
            each.name: (each, slice(end - each.chunk, end)) for each, end in zip(self.shards, ends, strict=True)
        }

    def add(self, flat: Tensor, name: str, stored: Tensor) -> None:
        """Add a stored residual of a parameter, that of all owners' rows, to its gradient in ``flat``."""
        each, place = self.places[name]
        rows = flat.view(self.channel.world, -1)
        rows[:, place].add_(each.taken(stored).view(self.channel.world, -1))

    def prepare(self, flat: Tensor, out: Tensor, scale: float, exchange: Exchange) -> Callable[[], None]:
        """Prepare to set ``out`` to ``scale`` times the sum over the ranks of this rank's part, as a step does.

        Args:
            flat: the whole gradient, contiguous float32; overwritten.
            out: contiguous float32, as many elements as this rank's part.
        """

        def move(flat: Tensor, key: Key) -> list[Tensor]:
            return [self.session.run(flat, out, key, scale)]

        # What arrives is a sum, and the noise of a code is measured on means.
        arrival = out, self.channel.rank * out.numel(), scale * self.channel.world
        return prepare(flat, self, exchange, move, arrival)


def wanted_of(exchange: Exchange, names: Sequence[str]) -> tuple[object, ...]:
    """Everything on which the plan for these parameters depends in this step; the first is its main compressor, or
    None in the dense warm-up.
    """
    methods = exchange.methods
    main = None if exchange.step <= methods.policy.start_after else methods.at(exchange.step)
    return main, exchange.protocol.epoch, exchange.leftovers.of(names)


def make_owner_plan(
    shards: Sequence[Sharded],
    main: Compressor | None,
    exchange: Exchange,
    channel: Channel,
    quiet: Callable[[], None],
    *,
    own: bool,
) -> OwnerPlan | None:
    """Make the plan for a bucket.

    Args:
        shards: parameters of the bucket, in its order.
        main: compressor of parameters that have no other; None: nothing is compressed.
        exchange: exchange that the plan is made for.
        channel: channel over the ranks among which the bucket is divided.
        quiet: returns when nothing is under way on the channel; called before ranks tell each other their hosts.
        own: true where the framework can reduce by itself what is not compressed.

    Returns:
        The plan; None: the framework is to reduce by itself.
    """
    methods = exchange.methods
    chosen = [choice_of(each, main, methods) for each in shards]
    plain = all(capabilities.identity(code) and facts.keeps_nothing(memory) for code, memory in chosen)
    left = exchange.leftovers.of(each.name for each in shards)
    # A value that is not finite reaches one owner alone then, and all ranks would have to undo the step.
    if plain and own and not left and not exchange.rollback.skips_steps:
        return None
    site = Site(channel, exchange.device, exchange.residuals)
    pieces = pieces_of_owners(shards, chosen, site)
    together = all(is_of_hosts(methods, each.name) for each in shards)
    session: ScatterSession | HostScatterSession
    # A rank encodes only its own part of a host's sum, so a residual of the whole has no place there.
    if together and all(facts.keeps_nothing(memory) for _, memory in chosen):
        # The hosts are found out by messages on the channel, on which only one thread may be at work.
        quiet()
        session = HostScatterSession(pieces, site, hosts_of(channel, exchange.device))
    else:
        session = ScatterSession(pieces, site)
    return OwnerPlan(shards, session, channel, measures=channel is exchange.channel)


def choice_of(each: Sharded, main: Compressor | None, methods: Methods) -> tuple[Compressor, Memory]:
    """The compressor and the memory of a parameter."""
    main = None if main is None else methods.main_of(each.name, main)
    code = methods.policy.choose(each.name, each.shape, main) if main is not None else None
    if code is None or capabilities.identity(code):
        meant = methods.policy.meant(each.name, main or methods.compressor)
        return Identity(), facts.dense(methods.memory_for(meant)) or NoMemory()
    return code, methods.memory_for(code)


def is_of_hosts(methods: Methods, name: str) -> bool:
    """Return whether it was decided that the ranks of a host sum this parameter plainly."""
    return name in methods.assigned and methods.assigned[name][1].by_host


def pieces_of_owners(
    shards: Sequence[Sharded], chosen: Sequence[tuple[Compressor, Memory]], site: Site
) -> list[list[Piece]]:
    """Make a piece of every parameter for each owner, as they lie in FSDP's buffer."""
    rooms = [each.world * each.room(memory.form) for each, (_, memory) in zip(shards, chosen, strict=True)]
    kept = site.kept.keep_all(
        [
            Unit(((each.name, numel),), (numel,), 0, code, memory)
            for each, numel, (code, memory) in zip(shards, rooms, chosen, strict=True)
        ]
    )
    owners, lo = [], 0
    for owner in range(site.channel.world):
        pieces = []
        for each, (code, memory), flats in zip(shards, chosen, kept, strict=True):
            unit = Unit(((f"{each.name}#{owner}", each.chunk),), each.shape, lo, code, memory)
            begin = owner * each.room(memory.form)
            views = {name: shaped(part_of(flat, begin, begin + each.chunk), each.shape) for name, flat in flats.items()}
            pieces.append(Piece(unit, memory, each.shape, lo, state=site.kept.remember(unit), kept=views))
            lo += each.chunk
        owners.append(pieces)
    return owners


def check_methods(methods: Methods) -> None:
    """Refuse methods that cannot work in one message to each owner, and a strategy, which would have no effect."""
    for each in methods.named():
        check_method(methods, each)
    named = methods.strategy.name if methods.strategy is not None else None
    allowed = (
        "left out, as the communicator of a recipe: gradients are reduced to their owners, in one message each; only "
        "between replicas can it be chosen"
    )
    require(named is None, "strategy", allowed, named)


def check_method(methods: Methods, compressor: Compressor) -> None:
    """Refuse a method that cannot work in one message to each owner."""
    if capabilities.in_rounds(compressor) or not compressor.fixed_size:
        why = "is averaged in rounds" if capabilities.in_rounds(compressor) else "has a variable size"
        raise ConfigError(
            f"compressor must be of one message and fixed size for a reduce-scatter, got {compressor.name!r}, which "
            f"{why}; with hybrid sharding and replicate= every method can be used"
        )
    memory = methods.memory_for(compressor)
    allowed = "one that keeps nothing of the mean for a reduce-scatter; with replicate= every memory can be used"
    require(not facts.keeps_mean(memory), "memory", allowed, memory.name)
