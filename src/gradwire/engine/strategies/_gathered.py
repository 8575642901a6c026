"""Base of ``allgather`` and ``broadcast``: every rank gets every payload and decodes them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Message, Part, Unit
from gradwire.engine.strategies._variable import VariableSession
from gradwire.engine.strategies.base import Session, Site, Strategy, message_nbytes
from gradwire.transport.collective_round import Kind, Round, to_all
from gradwire.transport.handshake import DIGEST as HEAD
from gradwire.vocabulary import Key, align

__all__ = ["GatheringStrategy"]


@dataclass(frozen=True)
class GatheringStrategy(Strategy):
    """Base of a strategy in which every rank gets all payloads whole: a subclass says how their bytes move."""

    gathers = True

    kind: ClassVar[Kind] = "exchange"
    """The pattern of the messages, where all have one size: "exchange" or "broadcast"."""

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if not all(unit.compressor.fixed_size for unit in units):
            return VariableSession(units, site)
        return GatheredSession(units, site, self.kind)

    def rounds(self, units: Sequence[Unit], workers: int, used: float | None = None) -> tuple[Round, ...]:
        varying = sum(not unit.compressor.fixed_size for unit in units)
        if not varying:
            return (to_all(message_nbytes(units), workers, self.kind),)
        if used is None:
            used = align(4) + sum(align(math.ceil(capabilities.traffic(unit.compressor, unit.shape))) for unit in units)
        return to_all(4 * varying, workers), to_all(used, workers)

    def coded(self, compressor: Compressor, workers: int) -> tuple[float, float]:
        return 1.0, workers


class GatheredSession(Session):
    """A session that encodes into its own row, moves the rows, and decodes them all.

    Memory and traffic grow with the number of workers: W messages are held, W-1 received.

    Args:
        units: units of one bucket.
        site: place where the session runs.
        kind: pattern of the messages.

    Attributes:
        share: factor of the sum that is handed out: that of the mean, unless somebody else is to have another.
    """

    def __init__(self, units: Sequence[Unit], site: Site, kind: Kind) -> None:
        super().__init__(site.channel)
        self.kind = kind
        self.part, self.share = Part(site.pieces(units), site.scale), 1.0 / self.channel.world
        self._make(site.device, self.part.packing.nbytes)

    def _make(self, device: torch.device, nbytes: int) -> None:
        """Make rows of so many bytes; on the CPU with room in front."""
        # Digests travel in front of payloads on the CPU alone.
        before = HEAD if device.type == "cpu" else 0
        room = torch.zeros((self.channel.world, before + nbytes), dtype=torch.uint8, device=device)
        self.headed = room if before else None
        self.rows = Message.on(self.part.packing, room[:, before:])
        self.own = self.rows.row(self.channel.rank)

    def carry(self, numel: int) -> Tensor:
        packing = self.part.packing
        end = packing.nbytes + 4 * numel
        self._make(self.rows.buffer.device, align(end))
        return self.rows.buffer[:, packing.nbytes : end].view(torch.float32)

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        with self.encoding:
            self.part.encode(flat, self.own, key)
        if self.kind == "broadcast":
            self.channel.broadcast(self.rows.buffer)
        else:
            # Only messages with tags can travel with the comparison of the ranks, which broadcasts have not.
            self.channel.all_gather(self.rows.buffer, self.headed)
        with self.decoding:
            if dense.numel:
                # It says the same on all ranks, so each may note it in its own row.
                dense.flag(self.own.status)
            bad = self.rows.status.any()
            self.part.deliver(flat, bad, partial(self._decode, flat), own=True)
        return bad

    def _decode(self, flat: Tensor) -> None:
        self.part.decode(self.rows, flat, self.share)
        self.part.settle(flat)
