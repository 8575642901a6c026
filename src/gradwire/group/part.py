"""A message and the pieces of a bucket that travel in it: where memory and compressor work on memory views.

Law: every buffer is made once, with the plan; a step writes into views and allocates nothing of gradient size.
A message starts with a status word; a rank whose gradient is not finite sets it, and every rank that sees any
status set takes its own encode back, hands out NaN (so that a gradient scaler skips the step everywhere), and
keeps its memory as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.errors import WireError
from gradwire.memory.base import Memory
from gradwire.types import ALIGNMENT, Key, Payload, State, align, tensor_id
from gradwire.wire import Packing, sent_nbytes

__all__ = ["Message", "Part", "Piece", "Unit", "fill_nonfinite", "nonfinite"]


@dataclass
class Unit:
    """What is compressed at once: one parameter, or neighbours joined where the method is element-wise.

    ``compressor`` may be replaced between steps by one with the same layout (a scheduled threshold).

    Args:
        members: names and sizes of the parameters, in order.
        shape: the parameter's own, or flat where several were joined.
        lo: offset of the first element in the bucket.
    """

    members: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]
    lo: int
    compressor: Compressor
    memory: Memory

    @property
    def name(self) -> str:
        return self.members[0][0]

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()


@dataclass
class Piece:
    """Elements [start, start + numel) of a unit, found at ``lo`` of a flat tensor."""

    unit: Unit
    memory: Memory
    shape: tuple[int, ...]
    lo: int
    start: int = 0
    state: State = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def id(self) -> int:
        """Names its random stream: by unit and offset, never by bucket."""
        return tensor_id(f"{self.unit.name}[{self.start}]")

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.lo : self.lo + self.numel].view(self.shape)


class Message:
    """One buffer, or one row for each rank, with its views made once."""

    def __init__(self, packing: Packing, device: torch.device, rows: int | None = None) -> None:
        shape = (packing.nbytes,) if rows is None else (rows, packing.nbytes)
        self._view(packing, torch.zeros(shape, dtype=torch.uint8, device=device))

    @classmethod
    def on(cls, packing: Packing, buffer: Tensor) -> Message:
        """The same views on a buffer that exists already."""
        message = cls.__new__(cls)
        message._view(packing, buffer)
        return message

    def _view(self, packing: Packing, buffer: Tensor) -> None:
        self.packing, self.buffer = packing, buffer
        self.status = packing.status(buffer)
        self.payloads = [packing.payload(buffer, i) for i in range(len(packing.layouts))]

    def row(self, rank: int) -> Message:
        return Message.on(self.packing, self.buffer[rank])

    def stacked(self) -> Message:
        """A single message seen as the row of a group of one, the form that decoding takes."""
        return Message.on(self.packing, self.buffer.unsqueeze(0))


class Part:
    """Pieces that share a message."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._states: list[dict[str, Tensor]] = [{} for _ in pieces]
        self.packing = Packing(tuple(piece.unit.compressor.layout(piece.shape) for piece in pieces))

    def encode(self, flat: Tensor, message: Message, key: Key) -> None:
        """Compress the pieces of ``flat`` into ``message``.

        What ``rollback`` needs is left in ``flat``: nobody may write there before ``deliver``.
        """
        message.status.zero_()
        self.remember()
        for piece, payload in zip(self.pieces, message.payloads, strict=True):
            piece.memory.encode(
                piece.unit.compressor,
                piece.of(flat),
                piece.kept,
                payload,
                piece.state,
                key.of(piece.id),
                message.status,
            )

    def remember(self) -> None:
        """Keep the states as they are, for ``rollback``."""
        self._states = [copied(piece.state) for piece in self.pieces]

    def rollback(self, flat: Tensor) -> None:
        for piece, before in zip(self.pieces, self._states, strict=True):
            piece.memory.rollback(piece.of(flat), piece.kept)
            for name, tensor in before.items():
                piece.state[name].copy_(tensor)

    def deliver(self, flat: Tensor, bad: Tensor, decode: Callable[[], None]) -> None:
        """End the step: where ``bad``, take the encode back and hand out NaN; else decode into the pieces.

        On the CPU that is a branch. On an accelerator it is a select, so that nothing waits for the device.
        """
        on_cpu = flat.device.type == "cpu"
        if on_cpu and bool(bad):
            self.rollback(flat)
            fill_nonfinite(self._views(flat), bad)
            return
        if not on_cpu:
            self.select(flat, bad)
        for piece in self.pieces:
            piece.memory.begin(piece.of(flat), piece.kept)
        decode()
        for piece in self.pieces:
            piece.memory.finish(piece.of(flat), piece.kept, bad)
        if not on_cpu:
            fill_nonfinite(self._views(flat), bad)

    def select(self, flat: Tensor, bad: Tensor) -> None:
        """What was before where ``bad``, else what is now."""
        now = [copied({**piece.kept, **piece.state}) for piece in self.pieces]
        self.rollback(flat)
        for piece, new in zip(self.pieces, now, strict=True):
            for name, tensor in {**piece.kept, **piece.state}.items():
                torch.where(bad, tensor, new[name], out=tensor)

    def add_decoded(self, message: Message, flat: Tensor, scale: float) -> None:
        """``flat += scale * (sum over the rows of the message)``."""
        for piece, payloads in zip(self.pieces, message.payloads, strict=True):
            piece.unit.compressor.add_decoded_many(payloads, piece.of(flat), scale)

    def settle(self, flat: Tensor) -> None:
        """The mean is complete: let the compressors turn it into what the optimizer gets."""
        for piece in self.pieces:
            piece.unit.compressor.settle(piece.of(flat))

    def close_gaps(self, message: Message, send: Tensor) -> int:
        """Copy what is used of a message into ``send``, the payloads at multiples of ``ALIGNMENT``; its length."""
        send[:ALIGNMENT].copy_(message.buffer[:ALIGNMENT])
        end, start = ALIGNMENT, ALIGNMENT
        for piece, layout in zip(self.pieces, self.packing.layouts, strict=True):
            payload = message.buffer[start : start + layout.nbytes]
            nbytes = sent_nbytes(piece.unit.compressor, layout, payload)
            after = align(end + nbytes)
            send[end : end + nbytes].copy_(payload[:nbytes])
            send[end + nbytes : after].zero_()
            start, end = align(start + layout.nbytes), after
        return end

    def payloads(self, row: Tensor) -> Iterator[Payload]:
        """The payloads of a message that ``close_gaps`` made.

        Raises:
            WireError: it claims more bytes than it has.
        """
        start = ALIGNMENT
        for piece, layout in zip(self.pieces, self.packing.layouts, strict=True):
            nbytes = sent_nbytes(piece.unit.compressor, layout, row[start:])
            if start + nbytes > row.numel():
                raise WireError(f"a message of {row.numel()} bytes claims at least {start + nbytes}")
            used = layout if piece.unit.compressor.fixed_size else layout.cut(nbytes - layout.offsets[-1])
            yield used.views(row[start : start + nbytes])
            start = align(start + nbytes)

    def _views(self, flat: Tensor) -> Iterator[Tensor]:
        return (piece.of(flat) for piece in self.pieces)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def fill_nonfinite(views: Iterable[Tensor], bad: Tensor) -> None:
    """NaN in every view if ``bad``, without asking the device."""
    for view in views:
        view.masked_fill_(bad, float("nan"))


def nonfinite(tensor: Tensor) -> Tensor:
    """Whether any element is NaN or infinite: one pass, nothing allocated, no wait for the device."""
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.bool, device=tensor.device)
    low, high = torch.aminmax(tensor)
    return ~(low.isfinite() & high.isfinite())
