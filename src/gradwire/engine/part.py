"""Messages of a group, and the pieces of a bucket that travel in them.

Invariants:
    * Every buffer is made once, with the plan. A step writes into views of these buffers and allocates nothing as large
      as a gradient. Memories and compressors work on the same views.
    * A message begins with a status word, which its sender sets if its gradient has a value that is not finite.
    * If any rank's status is set, every rank undoes its own encoding, so that its memory is as it was before the step,
      and returns NaN, so that a gradient scaler skips the step on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import WireError
from gradwire.kernels import Each, Pieces, Places
from gradwire.kernels.stored import form_of
from gradwire.memory import facts
from gradwire.memory.base import Memory
from gradwire.vocabulary import ALIGNMENT, Key, Payload, State, align, tensor_id
from gradwire.wire import Packing, nbytes_in_use, sent_nbytes, used_of

__all__ = ["Batch", "Message", "Part", "Piece", "Unit", "nonfinite", "pack_states", "pieces_of"]


@dataclass
class Unit:
    """The parameters that are compressed at once: one, or neighbours joined if the method is element-wise.

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
    """Elements [start, start + numel) of a unit, at ``lo`` of a flat tensor."""

    unit: Unit
    memory: Memory
    shape: tuple[int, ...]
    lo: int
    start: int = 0
    state: State = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numel = math.prod(self.shape)

    @property
    def id(self) -> int:
        """The name of its random stream: by unit and offset, never by bucket."""
        return tensor_id(f"{self.unit.name}[{self.start}]")

    def of(self, flat: Tensor) -> Tensor:
        """Return its elements of ``flat``, in its shape."""
        return flat[self.lo : self.lo + self.numel].view(self.shape)


class Message:
    """One buffer, or one row for each rank, with its views made once."""

    def __init__(self, packing: Packing, device: torch.device, rows: int | None = None) -> None:
        shape = (packing.nbytes,) if rows is None else (rows, packing.nbytes)
        self._view(packing, torch.zeros(shape, dtype=torch.uint8, device=device))

    @classmethod
    def on(cls, packing: Packing, buffer: Tensor) -> Message:
        """Return the same views on a buffer that exists already."""
        message = cls.__new__(cls)
        message._view(packing, buffer)
        return message

    def _view(self, packing: Packing, buffer: Tensor) -> None:
        self.packing, self.buffer = packing, buffer
        self.status = packing.status(buffer)
        self.payloads = [packing.payload(buffer, i) for i in range(len(packing.layouts))]
        self._together: dict[tuple[int, ...], Payload | None] = {}
        self._rows: dict[int, Message] = {}

    def row(self, rank: int) -> Message:
        """Return the message of one rank."""
        if rank not in self._rows:
            self._rows[rank] = Message.on(self.packing, self.buffer[rank])
        return self._rows[rank]

    @cached_property
    def stacked(self) -> Message:
        """Return a single message as the row of a group of one, the form that decoding takes."""
        return Message.on(self.packing, self.buffer.unsqueeze(0))

    def together(self, numbers: tuple[int, ...]) -> Payload | None:
        """Return these payloads as one, each field as ``Pieces`` of all; None if that is not possible."""
        if numbers not in self._together:
            self._together[numbers] = pieces_of([self.payloads[i] for i in numbers])
        return self._together[numbers]


def pieces_of(payloads: Sequence[Payload]) -> Payload | None:
    """View each field of all payloads as ``Pieces``; None if one lies in several tensors."""
    fields = [Pieces.of(views) for views in zip(*payloads, strict=True)]
    return None if None in fields else cast(Payload, tuple(fields))


class Keys:
    """The keys of pieces that are encoded in one call."""

    def __init__(self, tensors: Sequence[int]) -> None:
        self._tensors = tensors
        self._streams: dict[tuple[object, ...], Each] = {}
        self._key = Key()

    def at(self, key: Key) -> Keys:
        """Return the keys of the same pieces in another step."""
        self._key = key
        return self

    @property
    def step(self) -> int:
        """The step of the keys."""
        return self._key.step

    def stream(self, *, common: bool = False) -> Each:
        """Return the Philox key of every piece."""
        known = (self._key.seed, self._key.phase, self._key.rank, common)
        if known not in self._streams:
            self._streams[known] = Each(self._key.of(tensor).stream(common=common) for tensor in self._tensors)
        return self._streams[known]


class Batch:
    """The pieces of a message that one call works on: several of one method and memory, or a single one.

    What it gives of several are ``Pieces`` where it gives tensors of a single one; methods and memories that declare
    ``takes_pieces`` do the same with both.
    """

    def __init__(self, pieces: Sequence[Piece], numbers: tuple[int, ...]) -> None:
        self.pieces, self.numbers = pieces, numbers
        self.memory, self.unit = pieces[0].memory, pieces[0].unit
        self.keeps_mean = facts.keeps_mean(self.memory)
        self.several = len(pieces) > 1
        self._places: Places | None = None
        if self.several:
            names = pieces[0].kept
            blocks = {name: form_of(tensor).block for name, tensor in names.items()}
            found = {name: self._kept(name, blocks[name]) for name in names}
            states = {name: Pieces.of([piece.state[name].view(-1) for piece in pieces]) for name in pieces[0].state}
            # Tensors of several allocations are no table of pieces; each piece is a call of its own then.
            self.whole = None not in [*found.values(), *states.values()]
            self.kept, self.state = cast("dict[str, Tensor]", found), cast(State, states)
            self._keys = Keys([piece.id for piece in pieces])
        else:
            self.whole = True
            (piece,) = pieces
            self.kept, self.state = dict(piece.kept), piece.state
            self._id, self._span, self._shape = piece.id, slice(piece.lo, piece.lo + piece.numel), piece.shape
        self._before: dict[str, Tensor] = {}
        self._begun = False

    def _kept(self, name: str, block: int) -> Pieces | None:
        """The kept tensors of this name, flat, with the shapes of the pieces if they are numbers for the elements."""
        flats = [piece.kept[name].view(-1) for piece in self.pieces]
        elements = all(flat.numel() == piece.numel for flat, piece in zip(flats, self.pieces, strict=True))
        return Pieces.of(flats, block, tuple(tuple(piece.shape) for piece in self.pieces) if elements else None)

    @property
    def compressor(self) -> Compressor:
        """The method of this step, which a schedule may change."""
        return self.unit.compressor

    def of(self, flat: Tensor) -> Tensor:
        """Return the pieces of ``flat``."""
        if not self.several:
            return flat[self._span].view(self._shape)
        if self._places is None or self._places.length != flat.numel():
            lows, sizes = [piece.lo for piece in self.pieces], [piece.numel for piece in self.pieces]
            self._places = Places(flat.numel(), lows, sizes, [piece.shape for piece in self.pieces])
        return cast(Tensor, Pieces(flat, self._places))

    def key(self, key: Key) -> Key:
        """Return the key of the piece, or the keys of all."""
        return cast(Key, self._keys.at(key)) if self.several else key.of(self._id)

    def payload(self, message: Message) -> Payload:
        """Return their payloads in a message of one row, or of one for each rank."""
        if not self.several:
            return message.payloads[self.numbers[0]]
        together = message.together(self.numbers)
        if together is None:
            raise AssertionError("the payloads of a message lie in its buffer")
        return together

    def remember(self) -> None:
        """Copy the states, for ``rollback``."""
        for name, tensor in self.state.items():
            whole = Pieces.within(tensor)
            if name in self._before:
                self._before[name].copy_(whole)
            else:
                self._before[name] = whole.clone()

    def rollback(self, flat: Tensor) -> None:
        """Undo ``encode``, with the copies of ``remember``."""
        self.memory.rollback(self.of(flat), self.kept)
        for name, tensor in self.state.items():
            Pieces.within(tensor).copy_(self._before[name])

    def restore(self, flat: Tensor, bad: Tensor) -> None:
        """Undo ``encode`` if ``bad``, without waiting for the device."""
        if facts.takes_pieces(self.memory, 1.0):
            self.memory.rollback(self.of(flat), self.kept, bad.view(1))  # type: ignore[call-arg]
        else:
            # This memory cannot roll back on a condition, and to read the flag would wait for the device: roll back in
            # any case, and select the result on the device.
            now = copied(self.kept)
            self.memory.rollback(self.of(flat), self.kept)
            for name, tensor in self.kept.items():
                torch.where(bad, tensor, now[name], out=tensor)
        self.restore_states(bad)

    @property
    def begins_at_once(self) -> bool:
        """Return whether ``begin_or_undo`` does what ``restore``, ``deliver`` and ``spoil`` do with all elements.

        What is decoded must only be added, for NaN stays NaN then; nothing else may look at the sum.
        """
        code, memory = self.compressor, self.memory
        only_adds = not capabilities.decode_many.declared(code) and not capabilities.settles(code)
        return only_adds and not self.keeps_mean and facts.takes_pieces(memory, 1.0)

    def begin_or_undo(self, flat: Tensor, bad: Tensor) -> None:
        """Undo ``encode`` if ``bad``, without waiting for the device, and begin the sum that ``deliver`` adds to."""
        facts.begin_or_undo(self.memory, self.of(flat), self.kept, bad.view(1))
        self.restore_states(bad)
        self._begun = True

    def restore_states(self, bad: Tensor) -> None:
        """Restore the states if ``bad``; on the CPU this is a branch."""
        if self.state and (bad.device.type != "cpu" or bool(bad)):
            for name, tensor in self.state.items():
                whole = Pieces.within(tensor)
                torch.where(bad, self._before[name], whole, out=whole)

    def keep(self, flat: Tensor, bad: Tensor) -> None:
        """Store the rest in the pieces, which was not sent, unless ``bad``."""
        self.memory.update(self.of(flat), self.kept, bad)

    def begin(self, flat: Tensor) -> None:
        """Let the memory prepare the pieces for the sum."""
        facts.begin(self.memory, self.of(flat), self.kept)

    def add_decoded(self, payloads: Payload, flat: Tensor, scale: float) -> None:
        """Add the payloads to the pieces of ``flat``, one row of each field for each rank."""
        self.compressor.add_decoded_many(payloads, self.of(flat), scale)

    def deliver(self, payloads: Payload, flat: Tensor, scale: float) -> None:
        """Do ``begin``, unless that was done with ``begin_or_undo``, and then ``add_decoded``."""
        if self._begun:
            self._begun = False
            self.add_decoded(payloads, flat, scale)
        elif self.keeps_mean:
            self.begin(flat)
            self.add_decoded(payloads, flat, scale)
        else:
            # It overwrites the pieces, which saves the pass that would write zeros.
            capabilities.decode_many(self.unit.compressor, payloads, self.of(flat), scale)

    def settle(self, flat: Tensor) -> None:
        """Let the method convert the mean to the optimizer's gradient."""
        compressor = self.compressor
        if self.several and capabilities.takes_pieces(compressor):
            capabilities.settle(compressor, self.of(flat))
        else:
            for piece in self.pieces:
                capabilities.settle(piece.unit.compressor, piece.of(flat))

    def finish(self, flat: Tensor, bad: Tensor) -> None:
        """Let the memory see the result in the pieces."""
        facts.finish(self.memory, self.of(flat), self.kept, bad)

    def spoil(self, flat: Tensor, bad: Tensor) -> None:
        """Write NaN everywhere if ``bad``, without waiting for the device."""
        kernels.fill_where(self.of(flat).view(-1), math.nan, bad.view(1))


def batches_of(pieces: Sequence[Piece], scale: float = 1.0) -> list[Batch]:
    """Group pieces that one call can encode with a factor; the others come one by one."""
    groups: list[list[int]] = []
    for number, piece in enumerate(pieces):
        for group in groups:
            first = pieces[group[0]]
            if first.unit.compressor is piece.unit.compressor and first.memory == piece.memory:
                group.append(number)
                break
        else:
            groups.append([number])
    batches = []
    for group in groups:
        first = pieces[group[0]]
        code = first.unit.compressor
        # A method of several rounds takes all tensors at once anyway; here only its memory matters.
        joined = capabilities.in_rounds(code) or (capabilities.takes_pieces(code) and code.fixed_size)
        # Only summable methods multiply while they encode, without a second tensor.
        joined = joined and (scale == 1.0 or code.summable or capabilities.in_rounds(code))
        joined = joined and facts.takes_pieces(first.memory, scale) and all(pieces[i].numel > 0 for i in group)
        batch = Batch([pieces[i] for i in group], tuple(group)) if joined else None
        if batch is not None and batch.whole:
            batches.append(batch)
        else:
            batches += [Batch([pieces[i]], (i,)) for i in group]
    return batches


class Part:
    """Pieces that share a message.

    Args:
        pieces: pieces in the order of the message.
        scale: factor with which the pieces are encoded.

    Attributes:
        batches: the same pieces, in groups that one call works on.
    """

    def __init__(self, pieces: Sequence[Piece], scale: float = 1.0) -> None:
        self.pieces, self.scale = pieces, scale
        self.batches = batches_of(pieces, scale)
        # A schedule changes numbers of a method, and not whether it has a form of its own for the mean.
        self._settling = [batch for batch in self.batches if capabilities.settles(batch.compressor)]
        self._finishing = [batch for batch in self.batches if batch.keeps_mean]
        self.packing = Packing(tuple(piece.unit.compressor.layout(piece.shape) for piece in pieces))
        self._fill: Tensor | None = None

    def encode(self, flat: Tensor, message: Message, key: Key) -> None:
        """Compress the pieces of ``flat`` into ``message``.

        What ``rollback`` needs is left in ``flat``: nobody may write there before ``deliver``.
        """
        # The buffer is used in every step: the status of an earlier one would undo this one, too.
        message.status.zero_()
        for batch in self.batches:
            # A method's own state has no inverse operation, as a residual has; it is small and is copied before it
            # changes.
            batch.remember()
            batch.memory.encode(
                batch.unit.compressor,
                batch.of(flat),
                batch.kept,
                batch.payload(message),
                batch.state,
                batch.key(key),
                message.status,
                self.scale,
            )

    def rollback(self, flat: Tensor) -> None:
        for batch in self.batches:
            batch.rollback(flat)

    def restore(self, flat: Tensor, bad: Tensor) -> None:
        """Undo ``encode`` if ``bad``, without waiting for the device."""
        for batch in self.batches:
            batch.restore(flat, bad)

    def begin(self, flat: Tensor) -> None:
        """Let the memories prepare the pieces for the sum."""
        for batch in self.batches:
            batch.begin(flat)

    def finish(self, flat: Tensor, bad: Tensor) -> None:
        """Let the memories see the result in the pieces."""
        for batch in self._finishing:
            batch.finish(flat, bad)

    def deliver(
        self, flat: Tensor, bad: Tensor, decode: Callable[[], None], spoils: bool = True, own: bool = False
    ) -> None:
        """End the step: if ``bad``, undo the encoding and write NaN; else decode into the pieces.

        On the CPU that is a branch. On an accelerator the same operations run in every step, and those that undo look
        at ``bad`` there and end at once, so that nothing waits for the device.

        Args:
            decode: writes the mean into the pieces of ``flat``, from ``begin`` on.
            spoils: true: NaN must be handed out; else what is decoded of a bad step has one already.
            own: true: ``decode`` calls ``deliver`` of every one of these batches, once.
        """
        on_cpu = flat.device.type == "cpu"
        if on_cpu and bool(bad):
            # The values that undo the encoding lie in ``flat`` itself, so they are read before NaN takes their place.
            self.rollback(flat)
            self.spoil(flat, bad)
            return
        if on_cpu:
            decode()
            self.finish(flat, bad)
        else:
            self.deliver_unseen(flat, bad, decode, spoils, own)

    def deliver_unseen(
        self, flat: Tensor, bad: Tensor, decode: Callable[[], None], spoils: bool = True, own: bool = False
    ) -> None:
        """Do what ``deliver`` does, without a look at ``bad`` on the host."""
        at_once = [own and spoils and batch.begins_at_once for batch in self.batches]
        # Before ``decode``, which overwrites the values in ``flat`` that undo the encoding.
        for batch, begins in zip(self.batches, at_once, strict=True):
            (batch.begin_or_undo if begins else batch.restore)(flat, bad)
        decode()
        self.finish(flat, bad)
        # After ``finish``, so that a memory never reads the NaN that is handed out.
        for batch, begins in zip(self.batches, at_once, strict=True):
            if spoils and not begins:
                batch.spoil(flat, bad)

    def spoil(self, flat: Tensor, bad: Tensor) -> None:
        """Write NaN to all pieces if ``bad``."""
        for batch in self.batches:
            batch.spoil(flat, bad)

    def decode(self, message: Message, flat: Tensor, scale: float) -> None:
        """Compute ``flat = scale * (sum over the rows of the message)``, with the additions of the memories."""
        for batch in self.batches:
            batch.deliver(batch.payload(message), flat, scale)

    def decode_once(self, message: Message, flat: Tensor, scale: float) -> None:
        """Compute ``flat = scale * (sum over the rows of the message)`` and round the product once, and not each row's:
        what is in the middle between two numbers of 16 bits would not stay there.

        All of ``flat`` must be of the pieces, and no memory may add to it.
        """
        # The power of two below a factor, which is exact: the sum of large values must not be infinite.
        power = math.copysign(math.ldexp(0.5, math.frexp(scale)[1]), scale) if scale else 0.0
        self.decode(message, flat, power)
        if power != scale:
            # The inverse of a number of ranks is not exact; and on an accelerator torch multiplies by that of a number.
            flat.div_(torch.full((), power / scale, dtype=torch.float32, device=flat.device))

    def add_decoded(self, message: Message, flat: Tensor, scale: float) -> None:
        """Compute ``flat += scale * (sum over the rows of the message)``."""
        for batch in self.batches:
            batch.add_decoded(batch.payload(message), flat, scale)

    def settle(self, flat: Tensor) -> None:
        """Let the compressors convert the complete mean to the optimizer's gradient."""
        for batch in self._settling:
            batch.settle(flat)

    @cached_property
    def varying(self) -> list[int]:
        """The numbers of the pieces whose payloads vary in size."""
        return [i for i, piece in enumerate(self.pieces) if not piece.unit.compressor.fixed_size]

    def write_used(self, message: Message, out: Tensor) -> None:
        """Write the bytes in use of the streams of a message, one after the other.

        Args:
            message: message of one row.
            out: int32, one element for each of ``varying``.
        """
        # Where all payloads are of fixed size there is nothing to join, which torch refuses.
        if self.varying:
            torch.cat([used_of(self._payload(message, i)) for i in self.varying], out=out)

    def _payload(self, message: Message, i: int) -> Tensor:
        """View the bytes of a payload of a message of one row, up to its capacity."""
        start = self.packing.offsets[i]
        return message.buffer[start : start + self.packing.layouts[i].nbytes]

    def sizes(self, used: Sequence[int]) -> list[int]:
        """The bytes of each payload that travel.

        Args:
            used: the bytes in use of the streams, one for each of ``varying``.

        Raises:
            WireError: a stream claims more than its capacity.
        """
        claimed, layouts = dict(zip(self.varying, used, strict=True)), self.packing.layouts
        return [
            nbytes_in_use(piece.unit.compressor, layouts[i], claimed[i]) if i in claimed else layouts[i].nbytes
            for i, piece in enumerate(self.pieces)
        ]

    def close_gaps(self, message: Message, send: Tensor, sizes: Sequence[int] | None = None) -> int:
        """Copy the used bytes of a message to ``send``, payloads at multiples of ``ALIGNMENT``; return the length.

        Args:
            message: message of one row.
            send: uint8, as long as the message and ``ALIGNMENT``.
            sizes: bytes of each payload that travel; None: they are read, which waits for the device.
        """
        if sizes is None:
            out = torch.empty(len(self.varying), dtype=torch.int32, device=send.device)
            self.write_used(message, out)
            sizes = self.sizes(out.tolist())
        parts, end = [message.buffer[:ALIGNMENT]], ALIGNMENT
        for i, nbytes in enumerate(sizes):
            after = align(end + nbytes)
            parts += [self._payload(message, i)[:nbytes], self._zeros(send.device)[: after - end - nbytes]]
            end = after
        torch.cat(parts, out=send[:end])
        return end

    def _zeros(self, device: torch.device) -> Tensor:
        """Zeros that fill a payload up to a multiple of ``ALIGNMENT``."""
        if self._fill is None:
            self._fill = torch.zeros(ALIGNMENT, dtype=torch.uint8, device=device)
        return self._fill

    def length(self, sizes: Sequence[int]) -> int:
        """The bytes of a message that ``close_gaps`` makes of payloads of these sizes."""
        return ALIGNMENT + sum(map(align, sizes))

    def payloads(self, row: Tensor, sizes: Sequence[int] | None = None) -> Iterator[Payload]:
        """The payloads of a message that ``close_gaps`` made.

        Args:
            row: uint8, the message.
            sizes: bytes of each of its payloads; None: they are read one by one, and each of them waits for the device.

        Raises:
            WireError: the message claims more bytes than it has.
        """
        start = ALIGNMENT
        for i, (piece, layout) in enumerate(zip(self.pieces, self.packing.layouts, strict=True)):
            nbytes = sent_nbytes(piece.unit.compressor, layout, row[start:]) if sizes is None else sizes[i]
            # Before any view is made: the bytes come from another process.
            if start + nbytes > row.numel():
                raise WireError(f"a message of {row.numel()} bytes claims at least {start + nbytes}")
            code, used = piece.unit.compressor, nbytes - layout.offsets[-1]
            payload = (layout if code.fixed_size else layout.cut(used)).views(row[start : start + nbytes])
            if sizes is not None and capabilities.used_on_host(code):
                payload = (torch.tensor([used], dtype=torch.int32, device="cpu"), *payload[1:])
            yield payload
            start = align(start + nbytes)


def pack_states(states: Sequence[State], names: Iterable[str]) -> None:
    """Move the tensors of these names in several states into one tensor for each name, of which they become views."""
    for name in names:
        old = [state[name] for state in states]
        if len(old) > 1 and all(each.dtype is old[0].dtype for each in old):
            whole = torch.cat([each.reshape(-1) for each in old])
            parts = torch.split(whole, [each.numel() for each in old])
            for state, view, each in zip(states, parts, old, strict=True):
                state[name] = view.view(each.shape)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def nonfinite(tensor: Tensor) -> Tensor:
    """Return whether any element is NaN or infinite: one pass, nothing allocated, no wait for the device.

    A tensor whose elements do not lie in their order in memory, such as a channels-last one, is read as it lies.
    """
    in_order = isinstance(tensor, Pieces)
    if not in_order:
        tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        in_order = tensor.is_contiguous()
    if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) and in_order:
        status = torch.zeros(1, dtype=torch.int32, device=tensor.device)
        kernels.nonfinite(tensor.view(-1), status)
        return status.any()
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.bool, device=tensor.device)
    low, high = torch.aminmax(tensor)
    return ~(low.isfinite() & high.isfinite())
