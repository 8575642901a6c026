"""Messages of sparse entries: their form, and the exchange of messages of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.errors import WireError
from gradwire.transport.channel import Channel

__all__ = ["PlacedValues", "exchange", "pack", "unpack"]


class PlacedValues(NamedTuple):
    """Increasing indices, int64, and as many float32 values."""

    places: Tensor
    values: Tensor

    def within(self, lo: int, hi: int) -> PlacedValues:
        """Select the entries with an index in [lo, hi)."""
        edges = torch.tensor([lo, hi], dtype=torch.int64, device=self.places.device)
        first, last = torch.searchsorted(self.places, edges).tolist()
        return PlacedValues(self.places[first:last], self.values[first:last])


def pack(status: Tensor, lists: Sequence[PlacedValues]) -> Tensor:
    """Pack lists into uint8: int32 status, int32 count of each list, then all values in float32, then all indices in
    int32.
    """
    counts = torch.tensor([entries.places.numel() for entries in lists], dtype=torch.int32, device=status.device)
    values = torch.cat([entries.values for entries in lists])
    index = torch.cat([entries.places for entries in lists]).to(torch.int32)
    return torch.cat([part.view(torch.uint8) for part in (status, counts, values, index)])


def unpack(message: Tensor, ranges: Sequence[tuple[int, int]]) -> tuple[Tensor, list[PlacedValues]]:
    """Unpack the status and the lists of a message.

    Args:
        message: uint8, as ``pack`` made it.
        ranges: range of indices that each list may have: the first, and the one behind the last.

    Raises:
        WireError: the counts do not fit the length, or an index is outside its range.
    """
    edge = 4 + 4 * len(ranges)
    if message.numel() < edge:
        raise WireError(f"a message of {message.numel()} bytes is shorter than its head of {edge}")
    head = message[:edge].view(torch.int32)
    counts = head[1:].tolist()
    if min(counts) < 0 or edge + 8 * sum(counts) != message.numel():
        raise WireError(f"a message of {message.numel()} bytes cannot have lists of {counts} entries")
    values, index = message[edge:].tensor_split([4 * sum(counts)])
    parts = zip(
        torch.split(index.view(torch.int32), counts), torch.split(values.view(torch.float32), counts), strict=True
    )
    lists = [PlacedValues(where.long(), what) for where, what in parts]
    for entries, (lo, hi) in zip(lists, ranges, strict=True):
        if bool(((entries.places < lo) | (entries.places >= hi)).any()):
            raise WireError(f"indices must lie in [{lo}, {hi}), got {entries.places[:8].tolist()}")
    return head[:1], lists


def exchange(channel: Channel, sends: Sequence[Tensor]) -> list[Tensor]:
    """Send ``sends[j]``, uint8 of any size, to rank j; return what came from each rank. Sizes go first, 8 W bytes."""
    device = sends[channel.rank].device
    sizes = torch.zeros(channel.world, channel.world, dtype=torch.int64, device=device)
    sizes[channel.rank] = torch.tensor([send.numel() for send in sends], dtype=torch.int64, device=device)
    channel.all_gather(sizes.view(torch.uint8))
    receives = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes[:, channel.rank].tolist()]
    channel.exchange(sends, receives)
    receives[channel.rank] = sends[channel.rank]
    return receives
