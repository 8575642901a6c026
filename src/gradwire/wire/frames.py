"""The frame: the form of bytes that leave a group, for a server or a file.

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
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradwire.errors import Verbatim, WireError, require
from gradwire.wire import header as headers
from gradwire.wire.header import MAX_HEADER
from gradwire.wire.packing import sent_nbytes

if TYPE_CHECKING:
    from gradwire.compressors.base import Compressor

__all__ = ["MAX_BYTES", "Frame", "Reader", "frame", "unframe"]

Chunk: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"GRDW"
VERSION = 1
PREFIX = struct.Struct("<4sIQIII")
"""Magic, version, payload length, header length, CRC-32 of the payload, CRC-32 of the head: 28 bytes."""

MAX_BYTES = 2**32
"""Default limit of a payload, and of the float32 tensor it stands for: a few bytes may decode to a huge tensor."""


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
    header = headers.dump(compressor, shape, PREFIX.size)
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
    compressor, shape, layout = headers.load(header, known, max_bytes)
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
    payload = torch.frombuffer(body, dtype=torch.uint8) if body else torch.empty(0, dtype=torch.uint8, device="cpu")
    if not compressor.fixed_size and (claimed := sent_nbytes(compressor, layout, payload)) != body_nbytes:
        raise WireError(f"frame has {body_nbytes} bytes of payload, but the payload says that it uses {claimed}")
    compressor.check_payload(layout.views(payload), shape)
    return Frame(compressor, shape, payload)


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
