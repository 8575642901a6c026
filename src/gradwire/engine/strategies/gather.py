"""Compressed all-gather: every rank gets what all ranks have, each shard decoded from the bytes that its owner sent.

Invariants:
    * The owner of a shard decodes its own message, too, so that all ranks end with the same bits.
    * A rank sends and receives (W-1) payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from gradwire.engine.part import Message, Part
from gradwire.transport.channel import Channel
from gradwire.vocabulary import Key

__all__ = ["GatherSession"]


class GatherSession:
    """The messages of one shard's size, a row for each rank.

    Args:
        part: pieces of a shard.
        channel: channel to the other ranks.
        rows: buffer of the messages, uint8 of shape (W, bytes).
    """

    def __init__(self, part: Part, channel: Channel, rows: Tensor) -> None:
        self.part, self.channel = part, channel
        self.rows = Message.on(part.packing, rows)

    def send(self, flat: Tensor, key: Key) -> None:
        """Encode this rank's shard, contiguous float32, and move the messages of all ranks."""
        with self.channel.metrics.timed("encode"):
            self.part.encode(flat, self.rows.row(self.channel.rank), key)
        self.channel.all_gather(self.rows.buffer)

    def receive(self, shards: Sequence[Tensor], float32: Callable[[Tensor], Tensor]) -> None:
        """Decode the shard of each rank, or NaN where it had a value that is not finite.

        Args:
            shards: flat tensors, one for each rank.
            float32: returns a tensor itself, or room of its size in float32, which is valid until the next call.
        """
        with self.channel.metrics.timed("decode"):
            for index, shard in enumerate(shards):
                message, out = self.rows.row(index), float32(shard)
                self.part.decode(message.stacked, out, 1.0)
                # Each shard by the status of its own message: those of the other ranks are right.
                self.part.spoil(out, message.status.ne(0))
                if out is not shard:
                    shard.copy_(out)
