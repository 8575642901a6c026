"""Sessions in which every rank gets every payload of variable size: only the used bytes travel.

The sizes go first, 8 bytes a rank; then each rank's message, a status word and the used bytes of each payload at
multiples of ``ALIGNMENT``. What is received is decoded where it lies. The receive buffer grows to the largest sum of
messages that was seen, so memory follows what is really sent, not the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm.base import Session, Site
from gradwire.errors import WireError
from gradwire.group.dense import DenseMean
from gradwire.group.part import Message, Part, Unit
from gradwire.types import ALIGNMENT, Key

__all__ = ["VariableSession"]


class VariableSession(Session):
    """A session that encodes into a message of full capacity, closes the gaps, exchanges sizes and bytes, and decodes
    in rank order.

    Traffic of a rank: the (W-1) used messages of the others, and 8 (W-1) bytes of sizes. Reading the sizes waits for
    the device.
    """

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        self.channel, self.device = site.channel, site.device
        self.part = Part(site.pieces(units), site.scale)
        self.own = Message(self.part.packing, site.device)
        self.send = torch.zeros_like(self.own.buffer)
        self.sizes = torch.zeros(self.channel.world, dtype=torch.int64, device=site.device)
        self.received = torch.zeros(0, dtype=torch.uint8, device=site.device)

    def run(self, flat: Tensor, key: Key, dense: DenseMean) -> Tensor:
        metrics = self.channel.metrics
        with metrics.timed("encode"):
            self.part.encode(flat, self.own, key)
            message = self.send[: self.part.close_gaps(self.own, self.send)]
        rows = self._exchange(message)
        with metrics.timed("decode"):
            bad = torch.stack([row[:4].view(torch.int32)[0] for row in rows]).ne(0).any() | dense()
            self.part.deliver(flat, bad, lambda: self._decode(rows, flat))
        return bad

    def _exchange(self, message: Tensor) -> list[Tensor]:
        """Exchange the messages of all ranks."""
        rank, world = self.channel.rank, self.channel.world
        self.sizes[rank] = message.numel()
        self.channel.all_gather(self.sizes.view(torch.uint8).view(world, -1))
        sizes = self.sizes.tolist()
        largest = self.own.buffer.numel() + ALIGNMENT
        if not all(ALIGNMENT <= size <= largest and size % ALIGNMENT == 0 for size in sizes):
            raise WireError(f"messages must have a multiple of {ALIGNMENT} bytes, at most {largest}, got {sizes}")
        if sum(sizes) > self.received.numel():
            # An eighth more: sizes of a gradient that is like the one before differ a little in every step.
            self.received = torch.zeros(sum(sizes) * 9 // 8, dtype=torch.uint8, device=self.device)
        rows = list(torch.split(self.received[: sum(sizes)], sizes))
        self.channel.exchange([message] * world, rows)
        rows[rank] = message
        return rows

    def _decode(self, rows: Sequence[Tensor], flat: Tensor) -> None:
        self.part.begin(flat)
        for row in rows:
            for piece, payload in zip(self.part.pieces, self.part.payloads(row), strict=True):
                piece.unit.compressor.add_decoded(payload, piece.of(flat), 1.0 / self.channel.world)
        self.part.settle(flat)
