"""A server's file: a snapshot, and after it a record of each small change since.

    MAGIC, then for each record: the bytes of header and data, and two checksums; the header in msgpack; the data; END

Invariants:
    * A record is appended before its change is acknowledged.
    * A new snapshot replaces the whole file, so that the two always belong together, and the file stays as small as its
      snapshot, twice over.

Failure modes:
    * A record that ends beyond the end of the file was being written when the server ended, and nobody has had an
      answer to it: it is dropped. So is one whose last byte a power cut has left as zero.
    * A checksum that does not fit means that the file was damaged later: it is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from gradwire._files import RenamedError
from gradwire.errors import ConfigError
from gradwire.kvstore.system import SYSTEM, Disk

__all__ = ["NOTHING", "Journal"]

MAGIC = b"gradwire store 2\n"

EARLIER, MAX_EARLIER = b"gradwire server 1", 2**20
"""The mark of the format before this one, and the bytes within which it is."""

SIZES = struct.Struct("<IQ")
CHECKS = struct.Struct("<II")

END = b"\xff"
"""The last byte of a record, which is not zero, whatever the data are."""

NOTHING = memoryview(b"")

LOGGED = 2**20
"""Bytes of records that a file may always have; from there on as many as its snapshot has."""


class Journal:
    """The file of one server.

    Args:
        path: file, which need not exist.
        disk: disk on which it is.
        flushed: true: each record is on the disk, and survives a power cut; false: it survives the process. A snapshot
            is on the disk in any case.

    Attributes:
        written: number of records so far.
        kept: number of the newest record that is in the file.
        trouble: reason why the file could not be written the last time; empty if it could.
    """

    def __init__(self, path: Path, disk: Disk = SYSTEM.disk, *, flushed: bool = False) -> None:
        self.path, self._disk, self._flushed = path, disk, flushed
        self.written = self.kept = 0
        self.trouble = ""
        self._waiting: list[bytes | memoryview] = []
        self._snapshot = self._end = 0

    def read(self) -> list[tuple[dict[str, Any], memoryview]]:
        """Read the records; none if there is no file.

        Raises:
            ConfigError: the file is damaged, or no server has written it.
            OSError: the file cannot be read.
        """
        self._disk.clean(self.path)
        try:
            data = memoryview(self._disk.read(self.path))
        except FileNotFoundError:
            # The first start of a server.
            return []
        if bytes(data[: len(MAGIC)]) != MAGIC and EARLIER in bytes(data[:MAX_EARLIER]):
            raise ConfigError("an earlier version of gradwire wrote it: end that run with it, or take another file")
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise ConfigError(f"it must begin with {MAGIC!r}, got {bytes(data[: len(MAGIC)])!r}")
        records = []
        for header, body, end in _records(data):
            records.append((header, body))
            self._end = end
            self._snapshot = self._snapshot or end
        if not records:
            raise ConfigError("it ends within its snapshot")
        return records

    def append(self, header: dict[str, Any], data: memoryview = NOTHING) -> None:
        """Write a record, or keep it for ``flush`` if that fails."""
        self._waiting += _record(header, [data])
        self.written += 1
        # Earlier records that could not be written go first, because the file must have them in their order.
        self.flush()

    def flush(self) -> None:
        """Write the records that could not be written before."""
        if not self._waiting:
            return
        try:
            self._disk.append(self.path, self._end, self._waiting, flushed=self._flushed)
        except OSError as error:
            # The memory of the data may change until the next try.
            self._waiting = [bytes(piece) for piece in self._waiting]
            self._failed(error)
            return
        self._end += sum(map(len, self._waiting))
        self._kept()

    def replace(self, header: dict[str, Any], data: Sequence[memoryview]) -> None:
        """Write a snapshot, which contains all that the records before it tell.

        Raises:
            OSError: the file cannot be written; it is as it was, or the new one, which has the same and more.
        """
        pieces = [MAGIC, *_record(header, data)]
        try:
            self._disk.replace(self.path, pieces)
        except RenamedError as error:
            # The new file has its name already, and only the folder's entry may not be on the disk.
            self._replaced(pieces)
            self._failed(error)
            raise
        except OSError as error:
            self._failed(error)
            raise
        self._replaced(pieces)

    def take_back(self) -> None:
        """Take back the records that could not be written."""
        self._waiting, self.written = [], self.kept

    @property
    def exists(self) -> bool:
        """True if there is a snapshot in the file."""
        return self._end > 0

    @property
    def full(self) -> bool:
        """True if a snapshot would make the file shorter by half."""
        return self._end - self._snapshot > max(LOGGED, self._snapshot)

    def _replaced(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._snapshot = self._end = sum(map(len, pieces))
        self._kept()

    def _failed(self, error: OSError) -> None:
        self.trouble = f"{self.path} cannot be written: {error.strerror or error}"

    def _kept(self) -> None:
        self._waiting, self.kept, self.trouble = [], self.written, ""


def _record(header: dict[str, Any], data: Sequence[memoryview]) -> list[bytes | memoryview]:
    """Encode a record, in pieces so that its data are not copied: that takes as long as writing them."""
    packed = msgpack.packb(header, use_bin_type=True)
    sizes = SIZES.pack(len(packed), sum(piece.nbytes for piece in data))
    of_rest = zlib.crc32(packed)
    for piece in data:
        of_rest = zlib.crc32(piece, of_rest)
    return [b"".join((sizes, CHECKS.pack(zlib.crc32(sizes), of_rest), packed)), *data, END]


def _records(data: memoryview) -> Iterator[tuple[dict[str, Any], memoryview, int]]:
    """Yield the header and the data of each whole record, and the place behind it."""
    at = len(MAGIC)
    while len(data) - at >= SIZES.size + CHECKS.size:
        sizes, checks = data[at : at + SIZES.size], data[at + SIZES.size :][: CHECKS.size]
        begin = at + SIZES.size + CHECKS.size
        (packed, nbytes), (of_sizes, of_rest) = SIZES.unpack(sizes), CHECKS.unpack(checks)
        if not any(data[at:begin]) and not any(data[begin:]):
            # A power cut can leave a file longer than what was written to it.
            return
        if zlib.crc32(sizes) != of_sizes:
            raise ConfigError(f"the record at byte {at} is damaged: its checksum does not fit")
        end = begin + packed + nbytes + len(END)
        if end > len(data):
            return
        if zlib.crc32(data[begin : end - 1]) != of_rest or data[end - 1 : end] != END:
            if end == len(data) and not data[-1]:
                return
            raise ConfigError(f"the record at byte {at} is damaged: its checksum does not fit")
        header = msgpack.unpackb(data[begin : begin + packed], raw=False, strict_map_key=False)
        yield header, data[begin + packed : end - 1], end
        at = end
