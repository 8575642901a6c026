"""The contract of an exchange strategy: how payloads travel and who decodes what.

Invariants:
    * A strategy is configuration only. ``plan`` lays out the messages for the units of one bucket and returns a
      ``Session`` that owns every buffer; ``Session.run`` averages a flat gradient over the ranks, in place.
    * All ranks end with the same bits, because each decodes the same payloads in the same order.
    * ``run`` is plain sequential code over a ``Channel``. One thread calls it for each channel, in the same order on
      all ranks, and never from a callback of a collective.

Failure modes:
    A dependent collective that is started in a callback hangs, or mixes gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Part, Piece, Unit, pack_states
from gradwire.errors import ConfigError
from gradwire.kernels.stored import shaped
from gradwire.memory.base import Memory
from gradwire.transport.channel import Channel
from gradwire.transport.collective_round import Round
from gradwire.vocabulary import Configuration, Key, State

if TYPE_CHECKING:
    from gradwire.engine.residual_store import ResidualStore

__all__ = ["Session", "Site", "Strategy", "bare_pieces", "message_nbytes", "of_messages"]

ALLGATHER_UP_TO = 4
"""Workers up to which ``allgather`` is chosen: it moves W-1 payloads a rank, ``two_phase`` 2 (W-1)/W, but the second
compression costs quality and time; from 5 workers on the traffic decides."""


@dataclass(frozen=True)
class Site:
    """The place where a session runs: its ranks, its device, and the store of all that outlives it.

    Args:
        channel: the collectives and the byte counters.
        device: device of the gradients.
        kept: memories and states.
        scale: factor of what is compensated before it is encoded; memories keep what is not multiplied.
    """

    channel: Channel
    device: torch.device
    kept: ResidualStore
    scale: float = 1.0

    def pieces(self, units: Sequence[Unit]) -> list[Piece]:
        """Make each unit one piece, at its place in the bucket; their kept tensors lie together, for calls on many."""
        states = [self.kept.remember(unit) for unit in units]
        groups: dict[object, list[State]] = {}
        for unit, state in zip(units, states, strict=True):
            if capabilities.takes_pieces(unit.compressor) or capabilities.in_rounds(unit.compressor):
                groups.setdefault((id(unit.compressor), *state), []).append(state)
        for group in groups.values():
            pack_states(group, list(group[0]))
        pieces = []
        for unit, state, flats in zip(units, states, self.kept.keep_all(units), strict=True):
            kept = {name: shaped(tensor, unit.shape) for name, tensor in flats.items()}
            pieces.append(Piece(unit, unit.memory, unit.shape, unit.lo, state=state, kept=kept))
        return pieces


class Session(ABC):
    """The messages and buffers of one bucket.

    Args:
        channel: channel of the site.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        # Made once, because every message enters them in every step.
        self.encoding, self.decoding = map(channel.metrics.timed, ("encode", "decode"))

    @abstractmethod
    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        """Replace the units in ``flat`` by their mean over the ranks.

        Args:
            flat: the bucket's gradients, contiguous float32.
            key: key of the random stream in this step.
            dense: mean of what travels uncompressed in this bucket; where it has a value that is not finite, which all
                ranks see alike, this session is undone. It is waited for in any case.

        Returns:
            bool of one element: whether some rank had a value that is not finite. Then the units hold NaN (or what
            the sum made of them) on every rank, and all memories are as they were.
        """

    def carry(self, numel: int) -> Tensor | None:
        """Reserve room for numbers beside the payloads, if every rank gets every message; not every session can.

        Args:
            numel: number of float32, > 0; asked once, before the first ``run``.

        Returns:
            float32 of shape (W, numel): this rank's own row is sent by ``run``, which waits for ``dense`` when the
            other rows are there. None: there is no such message.
        """
        return None


class Strategy(Configuration, ABC):
    """Base of every strategy: subclass it as a frozen dataclass, one in each file."""

    name: ClassVar[str]

    sums: ClassVar[bool] = False
    """Payloads are summed on their way, so those of one message have one compressor."""

    gathers: ClassVar[bool] = False
    """Every rank gets the payloads of all others whole and sums them itself.

    Where their size is fixed, what is not compressed travels beside them, in the same message.
    """

    reencodes: ClassVar[bool] = False
    """The mean is encoded a second time, by the owners of its shards."""

    by_host: ClassVar[bool] = False
    """The sum of a host's ranks is encoded, and not each rank's own gradient."""

    peers_alike: ClassVar[bool] = True
    """A rank can decode its own message in place of a peer's, so one rank alone shows the times of all."""

    @abstractmethod
    def check(self, compressor: Compressor) -> None:
        """Refuse a compressor that this strategy cannot carry, with the reason and the remedy.

        Raises:
            ConfigError
        """

    def check_memory(self, memory: Memory) -> None:
        """Refuse a memory with which this strategy would lose gradients, with the reason and the remedy.

        Raises:
            ConfigError
        """
        return

    def meet(self, channel: Channel, device: torch.device) -> None:
        """Ask for the facts about the ranks that this strategy needs; all ranks call it at set-up.

        Args:
            channel: channel that the exchange will use.
            device: device of the gradients.

        Raises:
            ConfigError: the strategy cannot run among these ranks; the same on all of them, with the remedy.
        """
        return

    @abstractmethod
    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        """Make the buffers for the units of one bucket."""

    @abstractmethod
    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        """Say which messages a step of ``plan`` sends, from configuration and shapes alone.

        Args:
            units: units of one bucket, at least one.
            workers: ranks that exchange them, at least two.
            used: bytes of a rank's message where they depend on the values; None: what the compressors declare.
        """

    @abstractmethod
    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        """Say how many times each element is encoded, and how many times decoded, by one of so many ranks.

        The mean over elements and ranks: an owner that encodes a shard of W once more encodes 1 + 1/W times.
        """

    def carrier(self, compressor: Compressor, senders: int) -> Strategy:
        """Return the strategy by which the payloads travel between those that encode: ranks, or hosts."""
        return self

    def with_hosts_of(self, ranks: int) -> Strategy:
        """Return this strategy where so many ranks are known to share each host."""
        return self

    def to_config(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values."""
        return registry.to_config(self)

    def refuse_rounds(self, compressor: Compressor) -> None:
        if capabilities.in_rounds(compressor):
            raise ConfigError(
                f"strategy {self.name!r} sends messages, but {compressor.name!r} is averaged in "
                f"{capabilities.rounds_needed(compressor)} rounds: use strategy='allreduce'"
            )


def bare_pieces(units: Sequence[Unit]) -> list[Piece]:
    """The pieces of units, without what is kept for them: enough to lay out messages."""
    return [Piece(unit, unit.memory, unit.shape, unit.lo) for unit in units]


def message_nbytes(units: Sequence[Unit]) -> int:
    """The bytes of a message of whole units: status word, payloads, alignment."""
    return Part(bare_pieces(units)).packing.nbytes


def of_messages(compressor: Compressor, workers: int) -> str:
    """The strategy for payloads that cannot be summed: ``allgather``, or with many workers ``two_phase``."""
    # Owners get shards whose sizes must be known before.
    can_be_cut = compressor.fixed_size and compressor.alignment > 0
    return "two_phase" if workers > ALLGATHER_UP_TO and can_be_cut else "allgather"
