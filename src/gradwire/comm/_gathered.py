"""Base of ``allgather`` and ``broadcast``: every rank gets every payload and decodes them all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.comm._variable import VariableSession
from gradwire.comm.base import Session, Site, Strategy
from gradwire.compressors.base import Compressor
from gradwire.group.channel import Channel
from gradwire.group.dense import DenseMean
from gradwire.group.part import Message, Part, Unit
from gradwire.types import Key, align

__all__ = ["GatheredSession", "GatheringStrategy"]


@dataclass(frozen=True)
class GatheringStrategy(Strategy):
    """Base of a strategy in which every rank gets all payloads whole: a subclass says how their bytes move."""

    gathers = True

    @staticmethod
    @abstractmethod
    def move(channel: Channel, rows: Tensor) -> None:
        """Fill the rows of the other ranks with their messages.

        Args:
            channel: to the other ranks.
            rows: uint8 of shape (W, bytes); this rank's own row holds its message.
        """

    def check(self, compressor: Compressor) -> None:
        self.refuse_rounds(compressor)

    def plan(self, units: Sequence[Unit], site: Site) -> Session:
        if not all(unit.compressor.fixed_size for unit in units):
            return VariableSession(units, site)
        return GatheredSession(units, site, self.move)


class GatheredSession(Session):
    """A session that encodes into its own row, moves the rows, and decodes them all.

    Memory and traffic grow with the number of workers: W messages are held, W-1 received.
    """

    def __init__(self, units: Sequence[Unit], site: Site, move: Callable[[Channel, Tensor], None]) -> None:
        self.channel, self.move = site.channel, move
        self.part = Part(site.pieces(units), site.scale)
        self.rows = Message(self.part.packing, site.device, rows=self.channel.world)
        self.own = self.rows.row(self.channel.rank)

    def carry(self, numel: int) -> Tensor:
        packing, world = self.part.packing, self.channel.world
        end = packing.nbytes + 4 * numel
        room = torch.zeros((world, align(end)), dtype=torch.uint8, device=self.rows.buffer.device)
        self.rows = Message.on(packing, room)
        self.own = self.rows.row(self.channel.rank)
        return room[:, packing.nbytes : end].view(torch.float32)

    def run(self, flat: Tensor, key: Key, dense: DenseMean) -> Tensor:
        metrics = self.channel.metrics
        with metrics.timed("encode"):
            self.part.encode(flat, self.own, key)
        self.move(self.channel, self.rows.buffer)
        with metrics.timed("decode"):
            # It says the same on all ranks, so each may note it in its own row.
            dense.flag(self.own.status)
            bad = self.rows.status.any()
            self.part.deliver(flat, bad, lambda: self._decode(flat))
        return bad

    def _decode(self, flat: Tensor) -> None:
        self.part.decode(self.rows, flat, 1.0 / self.channel.world)
        self.part.settle(flat)
