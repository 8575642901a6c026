"""Collection of the states of all ranks on one of them, for frameworks that write one file."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.checkpoint import merge_states
from gradwire.errors import GroupError
from gradwire.frontends.state_units import ExchangeState
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import agree

__all__ = ["gathered"]


def gathered(state: ExchangeState) -> dict[str, Any] | None:
    """Merge the states of all ranks on CPU; None on every rank but the first. All ranks must call it, between steps.

    It travels as torch saves it, because views of one storage would be sent once for each view otherwise.
    """
    exchange = state.exchange
    channel = Channel(exchange.channel.group, Metrics())  # A checkpoint is no traffic of the gradients.
    try:
        # The sizes that follow are posted without a comparison, so all ranks must be in this call.
        agree(channel, "gathered", lambda: "{}", exchange.device)
    except GroupError:
        # The group is the exchange's own, and its messages are out of step now.
        exchange.channel.failed = channel.failed
        raise
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    own = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8).to(exchange.device)
    sizes = torch.zeros(channel.world, 1, dtype=torch.int64, device=exchange.device)
    sizes[channel.rank] = own.numel()
    # States differ in size from rank to rank, and Gloo ends a process that receives another size than it expects.
    channel.all_gather(sizes)
    nothing = own[:0]
    first = channel.rank == 0
    sends = [nothing if first or peer else own for peer in range(channel.world)]
    receives = [own.new_empty(int(size)) if first and peer else nothing for peer, size in enumerate(sizes)]
    channel.exchange(sends, receives)
    return merge_states(map(loaded, [own, *receives[1:]])) if first else None


def loaded(data: Tensor) -> dict[str, Any]:
    file = io.BytesIO(data.cpu().numpy().tobytes())
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state
