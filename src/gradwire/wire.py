"""The two forms of bytes: the message inside a group, and the frame for bytes that leave it.

Inside a group nobody sends what everybody knows. A message is a status word and the payloads, each at an aligned
place that follows from the layouts alone (``Packing``); there is no header and nothing to validate.

A frame says what it holds, because its reader knows nothing. Its law:

    28 bytes    magic, version, payload length, header length, CRC-32 of the payload, CRC-32 of prefix and header
    header      JSON: the compressor's configuration and the tensor's shape
    payload     the bytes of ``compressor.layout(shape)``

Each part is checked before the next is believed, and all of them before a view is made; whatever is wrong is a
``WireError`` that says what. Nothing in a frame is ever evaluated or imported: a compressor's name is looked up.
``docs/wire.md`` is the page from which to write another parser.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire import _header
from gradwire._header import MAX_DIMS, MAX_HEADER
from gradwire.errors import Verbatim, WireError, require
from gradwire.types import Layout, Payload, align

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor

__all__ = ["MAX_BYTES", "MAX_DIMS", "MAX_HEADER", "Frame", "Packing", "Reader", "frame", "sent_nbytes", "unframe"]

Chunk: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"GRDW"
VERSION = 1
PREFIX = struct.Struct("<4sIQIII")
"""Magic, version, payload length, header length, CRC-32 of the payload, CRC-32 of the head: 28 bytes."""

MAX_BYTES = 2**32
"""Default limit of a payload, and of the float32 tensor it stands for: a few bytes may decode to a huge tensor."""

_STATUS = 4


@dataclass(frozen=True)
class Packing:
    """Several payloads in one message: a status word, then each payload, all of them at multiples of ``ALIGNMENT``.

    The status is an int32 at offset 0 in a slot of ``ALIGNMENT`` bytes. A rank sets it when its gradient is not
    finite, so that the others learn it from the message itself and every rank treats the step in the same way.

    Args:
        layouts: layouts of the payloads, in the order in which they travel.

    Example:
        >>> from gradwire.types import Field
        >>> packing = Packing((Layout((Field("codes", torch.uint8, 5),)), Layout((Field("values", torch.half, 3),))))
        >>> packing.offsets, packing.nbytes
        ((8, 16), 24)
        >>> [view.shape for view in packing.payload(torch.zeros(2, 24, dtype=torch.uint8), 1)]
        [torch.Size([2, 3])]
    """

    layouts: tuple[Layout, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The places at which payloads start, in bytes."""
        return self._edges[:-1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message, a multiple of ``ALIGNMENT``."""
        return self._edges[-1]

    def status(self, buffer: Tensor) -> Tensor:
        """The status word of ``buffer``: an int32 view of shape ``(1,)`` or ``(ranks, 1)``."""
        return buffer[..., :_STATUS].view(torch.int32)

    def payload(self, buffer: Tensor, i: int) -> Payload:
        """Typed views of payload ``i``.

        Args:
            buffer: uint8, shape ``(nbytes,)`` or ``(ranks, nbytes)``.
            i: index into ``layouts``.
        """
        layout, start = self.layouts[i], self.offsets[i]
        return layout.views(buffer[..., start : start + layout.nbytes])

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        edges = [align(_STATUS)]
        for layout in self.layouts:
            edges.append(align(edges[-1] + layout.nbytes))
        return tuple(edges)


class Frame(NamedTuple):
    """The contents of a frame: ``compressor.decompress(payload, shape)`` returns the tensor."""

    compressor: Compressor
    shape: tuple[int, ...]
    payload: Tensor


def frame(compressor: Compressor, shape: Sequence[int], payload: Tensor) -> bytes:
    """Wrap a payload with all that a receiver needs to decode it.

    Args:
        compressor: compressor that made the payload; its configuration travels.
        shape: shape of the tensor that was compressed, at most ``MAX_DIMS`` dimensions.
        payload: uint8, shape ``(compressor.layout(shape).nbytes,)``, on any device.

    Raises:
        ConfigError: the payload is not of that layout, or the configuration does not fit into a header.

    Example:
        >>> from gradwire.compressors.ternary.twobit import TwoBit
        >>> code = TwoBit(threshold=0.5)
        >>> data = frame(code, (3,), code.compress(torch.tensor([0.6, -0.5, 0.1])))
        >>> unframe(data).compressor.decompress(unframe(data).payload, (3,)).tolist()
        [0.5, -0.5, 0.0]
    """
    nbytes = compressor.layout(shape).nbytes
    ok = payload.dtype == torch.uint8 and payload.shape == (nbytes,)
    require(
        ok, "frame.payload", f"uint8 of shape ({nbytes},)", Verbatim(f"{payload.dtype} of shape {tuple(payload.shape)}")
    )
    if not compressor.fixed_size:
        payload = payload[: sent_nbytes(compressor, compressor.layout(shape), payload)]
    body = payload.cpu().numpy().tobytes()
    header = _header.dump(compressor, shape, PREFIX.size)
    start = PREFIX.pack(MAGIC, VERSION, len(body), len(header), zlib.crc32(body), 0)[:-4]
    return b"".join((start, struct.pack("<I", zlib.crc32(header, zlib.crc32(start))), header, body))


def unframe(data: Chunk | Tensor, *, known: Sequence[Compressor] = (), max_bytes: int = MAX_BYTES) -> Frame:
    """Check one whole frame and open it; the payload is a copy that nobody else can change.

    Args:
        data: the frame and nothing else; a tensor must be uint8 on the CPU.
        known: compressors that are in no registry (a researcher's own), accepted where the configuration is equal.
        max_bytes: refuse a longer payload, and a tensor that needs more than this in float32.

    Returns:
        The compressor, the shape, and the payload: uint8, shape ``(layout.nbytes,)``, on the CPU.

    Raises:
        WireError: anything that is wrong with the bytes.
        ConfigError: ``data`` is not bytes at all.
    """
    view = _as_bytes(data)
    parser = _parse(known, max_bytes)
    end = 0
    try:
        part, nbytes = next(parser)
        while True:
            if end + nbytes > len(view):
                raise WireError(f"frame is truncated: its {part} needs {nbytes} bytes, {len(view) - end} are left")
            end += nbytes
            part, nbytes = parser.send(bytearray(view[end - nbytes : end]))
    except StopIteration as stop:
        if end != len(view):
            raise WireError(f"frame of {end} bytes is followed by {len(view) - end} others") from None
        opened: Frame = stop.value
        return opened


class Reader:
    """A reader of frames from a byte stream, however the stream was cut; it does no input or output of its own.

    A fault is raised as early as the bytes show it, after the frames that were good; then nothing more is read.

    Args:
        known: unregistered compressors, as for ``unframe``.
        max_bytes: limit of the tensor, as for ``unframe``; it bounds also the memory that an unfinished frame may hold.

    Example:
        >>> from gradwire.compressors.casts.none import Identity
        >>> data = frame(Identity(), (2,), Identity().compress(torch.tensor([1.0, 2.0])))
        >>> reader = Reader()
        >>> [len(reader.feed(part)) for part in (data[:30], data[30:] + data)]
        [0, 2]
        >>> reader.close()
    """

    def __init__(self, *, known: Sequence[Compressor] = (), max_bytes: int = MAX_BYTES) -> None:
        self._known, self._max_bytes = known, max_bytes
        self._buffer = bytearray()
        self._error: WireError | None = None
        self._begin()

    def feed(self, chunk: Chunk) -> list[Frame]:
        """Take the next bytes of the stream; return the frames they complete.

        Raises:
            WireError: the stream is broken. Frames completed by the same bytes are returned first, and the next call
                raises.
        """
        self._fail_again()
        self._buffer += chunk
        frames: list[Frame] = []
        while self._error is None and len(self._buffer) >= self._need:
            self._step(frames)
        if not frames:
            self._fail_again()
        return frames

    def close(self) -> None:
        """Declare that the stream has ended.

        Raises:
            WireError: the stream ended inside a frame, or was broken before.
        """
        self._fail_again()
        if self._buffer or self._part != "magic":
            raise WireError(
                f"stream ended inside a frame: its {self._part} needs {self._need} bytes, {len(self._buffer)} came"
            )

    def _begin(self) -> None:
        self._parser = _parse(self._known, self._max_bytes)
        self._part, self._need = next(self._parser)

    def _step(self, frames: list[Frame]) -> None:
        piece = self._buffer[: self._need]
        del self._buffer[: self._need]
        try:
            self._part, self._need = self._parser.send(piece)
        except StopIteration as stop:
            frames.append(stop.value)
            self._begin()
        except WireError as error:
            self._error = error

    def _fail_again(self) -> None:
        if self._error is not None:
            raise self._error


def _parse(known: Sequence[Compressor], max_bytes: int) -> Generator[tuple[str, int], bytearray, Frame]:
    """Parse a frame as a generator: it yields the part it needs next and its length, and is sent
    exactly those bytes.
    """
    magic = yield "magic", len(MAGIC)
    if magic != MAGIC:
        raise WireError(f"not a gradwire frame: it starts with {bytes(magic)!r}, not {MAGIC!r}")
    start = magic + (yield "prefix", PREFIX.size - len(MAGIC))
    body_nbytes, header_nbytes, body_crc, head_crc = _check_prefix(start, max_bytes)
    header = yield "header", header_nbytes
    if zlib.crc32(header, zlib.crc32(start[:-4])) != head_crc:
        raise WireError("frame header is corrupted: its CRC-32 does not match")
    compressor, shape, layout = _header.load(header, known, max_bytes)
    least = layout.nbytes if compressor.fixed_size else layout.offsets[-1]
    if not least <= body_nbytes <= layout.nbytes:
        allowed = f"has {layout.nbytes}" if compressor.fixed_size else f"has {least} to {layout.nbytes}"
        raise WireError(
            f"frame says {body_nbytes} bytes of payload, but {compressor.name!r} of shape {shape} {allowed}"
        )
    body = yield "payload", body_nbytes
    if zlib.crc32(body) != body_crc:
        raise WireError("frame payload is corrupted: its CRC-32 does not match")
    body += bytes(layout.nbytes - body_nbytes)
    payload = torch.frombuffer(body, dtype=torch.uint8) if body else torch.empty(0, dtype=torch.uint8)
    if not compressor.fixed_size and (claimed := sent_nbytes(compressor, layout, payload)) != body_nbytes:
        raise WireError(f"frame has {body_nbytes} bytes of payload, but the payload says that it uses {claimed}")
    compressor.check_payload(layout.views(payload), shape)
    return Frame(compressor, shape, payload)


def sent_nbytes(compressor: Compressor, layout: Layout, payload: Tensor) -> int:
    """The number of bytes of a payload that travel: all of them, or for a variable size those that are in use.

    Args:
        compressor: compressor that made the payload.
        layout: layout of the payload.
        payload: uint8 of one dimension, at least up to the last field.

    Raises:
        WireError: the payload claims more than its capacity.
    """
    if compressor.fixed_size:
        return layout.nbytes
    used, capacity = int(payload[:4].view(torch.int32)), layout.fields[-1].count
    if not 0 <= used <= capacity:
        raise WireError(f"a payload of {compressor.name!r} uses at most {capacity} bytes of its stream, not {used}")
    return layout.offsets[-1] + used


def _check_prefix(start: bytearray, max_bytes: int) -> tuple[int, int, int, int]:
    _, version, body_nbytes, header_nbytes, body_crc, head_crc = PREFIX.unpack(start)
    if version != VERSION:
        raise WireError(f"frame has version {version}; this gradwire reads version {VERSION}")
    if header_nbytes > MAX_HEADER:
        raise WireError(f"frame header must be at most {MAX_HEADER} bytes, got {header_nbytes}")
    if body_nbytes > max_bytes:
        raise WireError(f"frame payload must be at most max_bytes={max_bytes} bytes, got {body_nbytes}")
    return body_nbytes, header_nbytes, body_crc, head_crc


def _as_bytes(data: Chunk | Tensor) -> memoryview:
    if isinstance(data, Tensor):
        ok = data.dtype == torch.uint8 and data.device.type == "cpu" and data.dim() == 1
        require(ok, "unframe.data", "1-D uint8 on the CPU", Verbatim(f"{data.dtype}, {data.dim()}-D on {data.device}"))
        data = data.numpy().data
    require(
        isinstance(data, Chunk), "unframe.data", "bytes, a memoryview or a uint8 tensor", Verbatim(type(data).__name__)
    )
    view = memoryview(data)
    return view if view.format == "B" and view.c_contiguous and view.ndim == 1 else memoryview(view.tobytes())
