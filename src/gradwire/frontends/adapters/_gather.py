"""Collection of the states of all ranks on one of them, for frameworks that write one file.

Invariants:
    Rank 0 receives one state after the other, in pieces, into the memory of its host; a GPU holds one piece at most.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from gradwire.engine.checkpoint import merge_states
from gradwire.errors import GroupError
from gradwire.frontends.setup import backends_of
from gradwire.frontends.state_units import ExchangeState
from gradwire.metrics import Metrics
from gradwire.transport.channel import Channel
from gradwire.transport.handshake import agree

__all__ = ["gathered"]


PIECE = 2**26
"""Bytes of a message at most."""


def gathered(state: ExchangeState) -> dict[str, Any] | None:
    """Merge the states of all ranks on CPU; None on every rank but the first. All ranks must call it, between steps.

    It travels as torch saves it, because views of one storage would be sent once for each view otherwise.
    """
    exchange = state.exchange
    channel = Channel(exchange.channel.group, Metrics())  # A checkpoint is no traffic of the gradients.
    channel.call_limit = exchange.channel.call_limit
    try:
        # The messages that follow are posted without a comparison, so all ranks must be in this call.
        agree(channel, "gathered", lambda: "{}", exchange.device)
        # Gloo sends from the host, and NCCL from a GPU alone.
        by_host = channel.world == 1 or "cpu" in backends_of(channel.group)
        states = collected(channel, state, torch.device("cpu") if by_host else exchange.device)
    except GroupError:
        # The group is the exchange's own, and its messages are out of step now.
        exchange.channel.failed = channel.failed
        raise
    return merge_states(states) if channel.rank == 0 else None


def collected(channel: Channel, state: ExchangeState, device: torch.device) -> list[dict[str, Any]]:
    """Return the states of all ranks on rank 0, and nothing on the others."""
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    own = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    states = [loaded(file)] if channel.rank == 0 else []
    for rank in range(1, channel.world):
        # States differ in size from rank to rank. All ranks meet before each of them, because a message that waits for
        # all states before it would end at the group's timeout.
        size = torch.tensor([own.numel() if channel.rank == rank else 0], device=device)
        channel.all_reduce(size, "max")
        if channel.rank == rank:
            send(channel, own, device)
        elif channel.rank == 0:
            states.append(receive(channel, rank, int(size), device))
    return states


def send(channel: Channel, data: Tensor, device: torch.device) -> None:
    nothing = torch.empty(0, dtype=torch.uint8, device=device)
    for piece in torch.split(data, PIECE):
        channel.exchange([piece.to(device), *[nothing] * (channel.world - 1)], [nothing] * channel.world)


def receive(channel: Channel, rank: int, size: int, device: torch.device) -> dict[str, Any]:
    nothing, file = torch.empty(0, dtype=torch.uint8, device=device), io.BytesIO()
    while file.tell() < size:
        piece = nothing.new_empty(min(PIECE, size - file.tell()))
        channel.exchange(
            [nothing] * channel.world, [piece if each == rank else nothing for each in range(channel.world)]
        )
        file.write(piece.cpu().numpy().data)
    return loaded(file)


def loaded(file: io.BytesIO) -> dict[str, Any]:
    file.seek(0)
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state
