"""Strategy of a compressed reduce-scatter, then a compressed all-gather: the traffic of a rank
stays near two payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Message, Part, Piece, Unit
from gradwire.engine.shards import cut
from gradwire.engine.strategies.base import Session, Site, Strategy, bare_pieces
from gradwire.errors import ConfigError
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual
from gradwire.transport.collective_round import Round
from gradwire.vocabulary import Key

__all__ = ["TwoPhase"]


@dataclass(frozen=True)
class TwoPhase(Strategy):
    """Cut the bucket into W shards; rank j sums shard j in float32, compresses the mean again, and sends it to all.

    Phase 1: rank i sends payload i of shard j to rank j. Phase 2: rank j sends the payload of the mean of shard j, by
    ``compressor.for_mean``, for no other rank averages its noise. Traffic of a rank: 2 (W-1)/W payloads, against W-1
    for ``allgather``, and more where the code of means has more bits: half a bit after an eighth. Memory: two messages,
    and 4/W bytes an element for the shard's sum; as much again for the server-side residual where workers keep a
    residual or estimates (what the second compression loses would be missing for ever). Without a memory the method
    must be unbiased.

    Example:
        >>> TwoPhase().to_config()
        {'name': 'two_phase'}

    Source:
        F. Seide et al., "1-Bit Stochastic Gradient Descent", INTERSPEECH 2014, for both quantised directions.
    """

    name = "two_phase"
    reencodes = True

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)
        if not compressor.fixed_size or compressor.alignment == 0:
            raise ConfigError(
                f"strategy 'two_phase' cuts tensors into shards, but {compressor.name!r} "
                f"{'has a variable size' if compressor.alignment else 'cannot be cut'}: use strategy='allgather'"
            )

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        return TwoPhaseSession(units, site)

    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        parts = [Part(pieces) for pieces in cut(bare_pieces(units), workers)]
        shards, means = ([part.packing.nbytes for part in each] for each in (parts, parts_of_means(parts)))
        return (
            Round("exchange", sum(shards) - min(shards), (workers - 1) * max(shards)),
            Round("exchange", (workers - 1) * max(means), sum(means) - min(means)),
        )

    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        return 1 + 1 / workers, 2.0


class TwoPhaseSession(Session):
    """The shards, one message to each owner, and the owner's sum.

    Attributes:
        share: factor of the sum that is handed out: that of the mean, unless somebody else is to have another.
    """

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        super().__init__(site.channel)
        rank, world = self.channel.rank, self.channel.world
        shards = cut(site.pieces(units), world)
        self.parts = [Part(pieces, site.scale) for pieces in shards]
        self.sends = [Message(part.packing, site.device) for part in self.parts]
        self.receives = Message(self.parts[rank].packing, site.device, rows=world)
        self.owned = Part(own_pieces(shards[rank], site))
        self.sum = torch.zeros(sum(piece.numel for piece in self.owned.pieces), dtype=torch.float32, device=site.device)
        *self.mean_parts, self.encoder = parts_of_means([*self.parts, self.owned])
        self.means = [Message(part.packing, site.device) for part in self.mean_parts]
        self.share = 1.0 / world

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        with self.encoding:
            for part, message in zip(self.parts, self.sends, strict=True):
                part.encode(flat, message, key)
        self._to_owners()
        self._compress_mean(key)
        self._from_owners()
        with self.decoding:
            bad = torch.cat([message.status for message in self.means]).any() | dense.bad()
            self._deliver(flat, bad)
        return bad

    def _to_owners(self) -> None:
        rank = self.channel.rank
        # A rank sends itself nothing: the exchange leaves its own row alone.
        self.receives.buffer[rank].copy_(self.sends[rank].buffer)
        self.channel.exchange([send.buffer for send in self.sends], list(self.receives.buffer.unbind(0)))

    def _compress_mean(self, key: Key) -> None:
        """Sum the shard and compress its mean into the own message, which passes a bad status on."""
        own = self.means[self.channel.rank]
        with self.decoding:
            poisoned = self.receives.status.any()
            self.owned.decode_once(self.receives, self.sum, self.share)
            self.owned.settle(self.sum)
        with self.encoding:
            self.encoder.encode(self.sum, own, replace(key, phase=1))
            # A rank's own status has reached the owners only; their messages pass it on to all ranks.
            own.status.bitwise_or_(poisoned.to(torch.int32))

    def _from_owners(self) -> None:
        own = self.means[self.channel.rank].buffer
        self.channel.exchange([own] * self.channel.world, [mean.buffer for mean in self.means])

    def _deliver(self, flat: Tensor, bad: Tensor) -> None:
        # The owner's residual of the mean is restored, too, where the step does not count.
        self.encoder.deliver(self.sum, bad, lambda: None)
        # The pieces of a tensor have one state: what the first of them found there must be what is put back last.
        for part, of_mean, mean in reversed(list(zip(self.parts, self.mean_parts, self.means, strict=True))):
            part.deliver(flat, bad, partial(of_mean.decode, mean.stacked, flat, 1.0))


def parts_of_means(parts: Sequence[Part]) -> list[Part]:
    """The same parts with the code that is made for means; a part itself where that is its own."""
    # Pieces are encoded together if they have one compressor object.
    codes: dict[int, Compressor] = {}

    def of_mean(piece: Piece) -> Piece:
        own = piece.unit.compressor
        if id(own) not in codes:
            codes[id(own)] = capabilities.for_mean(own)
        code = codes[id(own)]
        return piece if code is own else replace(piece, unit=replace(piece.unit, compressor=code))

    found = list[Part]()
    for part in parts:
        pieces = [of_mean(piece) for piece in part.pieces]
        same = all(one is other for one, other in zip(pieces, part.pieces, strict=True))
        found.append(part if same else Part(pieces))
    return found


def server_memory(memory: Memory) -> Memory:
    """The memory of an owner: with error feedback if the workers' memory would miss the error of the mean.

    The memory in use decides, not what the method declares: a residual forgets what it has sent, and estimates of
    workers move by it, whether the method needed either or not.
    """
    return Residual() if memory.balanced else NoMemory()


def own_pieces(shard: Sequence[Piece], site: Site) -> list[Piece]:
    """The shard's pieces, laid end to end for the owner's sum, with the server-side tensors they need."""
    owned, lo = [], 0
    memories = [server_memory(piece.unit.memory) for piece in shard]
    tensors = site.kept.servers([(piece, memory.buffers) for piece, memory in zip(shard, memories, strict=True)])
    for piece, memory, flats in zip(shard, memories, tensors, strict=True):
        state = piece.unit.compressor.init_state(piece.shape, Key(tensor=piece.id, phase=1), site.device)
        # Agreed values hold for the mean too; only the wishes are the workers' own.
        common = capabilities.advice(piece.unit.compressor) > 0
        state |= {name: tensor for name, tensor in piece.state.items() if common and name != "advice"}
        kept = {name: flat.view(piece.shape) for name, flat in flats.items()}
        owned.append(Piece(piece.unit, memory, piece.shape, lo, piece.start, state, kept))
        lo += piece.numel
    return owned
