"""Files of a simulated machine: they outlive its processes, and are torn, full or damaged."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path

from gradwire.kvstore.system import Disk
from gradwire_lab.simulation.scheduler import Killed, SimulatedProcess

__all__ = ["Files", "MemoryDisk"]


class Files:
    """The files of a machine, with the bytes that would be left after a power cut.

    Args:
        random: source of all that is drawn.
    """

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.now: dict[Path, bytes] = {}
        self.flushed: dict[Path, bytes] = {}
        self.earlier: dict[Path, list[bytes]] = {}
        self.full = False

    def cut_power(self) -> None:
        """Lose what was not flushed: all of it, or the end of what was appended."""
        for path, data in list(self.now.items()):
            kept = self.flushed.get(path, b"")
            if data.startswith(kept):
                kept = data[: self.random.randint(len(kept), len(data))]
            self.now[path] = self.flushed[path] = kept

    def put_back(self) -> None:
        """Replace a file by one that was there before it, or remove it."""
        for path in list(self.now):
            data = self.random.choice([*self.earlier.get(path, []), None])
            for files in (self.now, self.flushed):
                files.pop(path, None)
                files |= {} if data is None else {path: data}

    def flip(self) -> bool:
        """Flip a bit of one of the files; return whether there is one."""
        paths = [path for path, data in self.now.items() if data]
        if not paths:
            return False
        path = self.random.choice(paths)
        data = bytearray(self.now[path])
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        self.now[path] = self.flushed[path] = bytes(data)
        return True


class MemoryDisk(Disk):
    """The files of a machine, as one of its processes sees them.

    Args:
        files: files of the machine.
        process: process that reads and writes.
    """

    def __init__(self, files: Files, process: SimulatedProcess) -> None:
        self._files, self._process = files, process

    def read(self, path: Path) -> bytes:
        """Return the bytes of a file."""
        if path not in self._files.now:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return self._files.now[path]

    def append(self, path: Path, start: int, pieces: Sequence[bytes | memoryview], *, flushed: bool) -> None:
        """Write bytes from a place of a file on, and drop what lies behind them."""
        self._write(path, self.read(path)[:start], b"".join(map(bytes, pieces)), flushed)

    def replace(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a file to the disk, whole or not at all."""
        temporary = path.with_name(f".{path.name}.new")
        try:
            self._write(temporary, b"", b"".join(map(bytes, pieces)), flushed=True)
        except OSError:
            self._files.now.pop(temporary)
            raise
        if path in self._files.now:
            self._files.earlier.setdefault(path, []).append(self._files.now[path])
        self._files.now[path] = self._files.now.pop(temporary)
        self._files.flushed[path] = self._files.now[path]

    def clean(self, path: Path) -> None:
        """Remove what an interrupted ``replace`` of a file has left."""
        self._files.now.pop(path.with_name(f".{path.name}.new"), None)

    def _write(self, path: Path, before: bytes, data: bytes, flushed: bool) -> None:
        dies = self._process.operate(f"writes {path.name} {len(before)} {len(data)}")
        if self._process.torn:
            self._process.kill()
            dies = True
        if dies or self._files.full:
            self._files.now[path] = before + data[: self._files.random.randint(0, len(data))]
            if dies:
                raise Killed
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        self._files.now[path] = before + data
        if flushed:
            self._files.flushed[path] = before + data
