"""Sessions in which every rank gets every payload of variable size: only the used bytes travel.

The bytes in use go first, an int32 for each payload of a rank; then each rank's message, a status word and the used
bytes of each payload at multiples of ``ALIGNMENT``. What is received is decoded where it lies.

Invariants:
    * The host reads all sizes at once, and waits for the device only then.
    * The receive buffer grows to the largest sum of messages that was seen, so memory follows the bytes that are really
      sent, and not the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.engine.dense import DenseSession
from gradwire.engine.part import Message, Part, Unit
from gradwire.engine.strategies.base import Session, Site
from gradwire.vocabulary import Key

__all__ = ["VariableSession"]


class VariableSession(Session):
    """A session that encodes into a message of full capacity, closes the gaps, and exchanges sizes and bytes.

    Traffic of a rank: the (W-1) used messages of the others, and 4 (W-1) bytes for each payload that varies in size.
    """

    def __init__(self, units: Sequence[Unit], site: Site) -> None:
        super().__init__(site.channel)
        self.device = site.device
        self.part = Part(site.pieces(units), site.scale)
        self.own = Message(self.part.packing, site.device)
        self.send = torch.zeros_like(self.own.buffer)
        shape = self.channel.world, len(self.part.varying)
        self.used = torch.zeros(shape, dtype=torch.int32, device=site.device)
        self.received = torch.zeros(0, dtype=torch.uint8, device=site.device)

    def run(self, flat: Tensor, key: Key, dense: DenseSession) -> Tensor:
        with self.encoding:
            self.part.encode(flat, self.own, key)
            self.part.write_used(self.own, self.used[self.channel.rank])
        sizes = self._exchange_sizes()
        with self.encoding:
            message = self.send[: self.part.close_gaps(self.own, self.send, sizes[self.channel.rank])]
        rows = self._exchange(message, sizes)
        with self.decoding:
            # The status is the first word of each message, at the same place whatever the sizes of its payloads.
            bad = torch.stack([row[:4].view(torch.int32)[0] for row in rows]).ne(0).any() | dense.bad()
            self.part.deliver(flat, bad, lambda: self._decode(rows, sizes, flat))
        return bad

    def _exchange_sizes(self) -> list[list[int]]:
        """Exchange how many bytes of each payload travel, for all ranks."""
        self.channel.all_gather(self.used.view(torch.uint8))
        # The host waits for the device here, once in an exchange: the sizes of all messages follow from these numbers.
        return [self.part.sizes(used) for used in self.used.tolist()]

    def _exchange(self, message: Tensor, sizes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Exchange the messages of all ranks."""
        lengths = [self.part.length(each) for each in sizes]
        if sum(lengths) > self.received.numel():
            # An eighth more: sizes of a gradient that is like the one before differ a little in every step.
            self.received = torch.zeros(sum(lengths) * 9 // 8, dtype=torch.uint8, device=self.device)
        rows = list(torch.split(self.received[: sum(lengths)], lengths))
        self.channel.exchange([message] * self.channel.world, rows)
        rows[self.channel.rank] = message
        return rows

    def _decode(self, rows: Sequence[Tensor], sizes: Sequence[Sequence[int]], flat: Tensor) -> None:
        self.part.begin(flat)
        for row, own in zip(rows, sizes, strict=True):
            for piece, payload in zip(self.part.pieces, self.part.payloads(row, own), strict=True):
                piece.unit.compressor.add_decoded(payload, piece.of(flat), 1.0 / self.channel.world)
        self.part.settle(flat)
