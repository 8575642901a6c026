"""Board over a store of ``torch.distributed``: notes that all can read, lists that all can add to, and bytes.

Invariants:
    * Nothing here waits without a deadline. A store that is gone is a ``GroupError`` that names its place.
    * A note that was put up with ``first`` stays: whoever comes second finds the other's note.
    * If a writer is killed between counting an entry of a list and writing its note, the first reader takes that entry,
      so it hides nothing behind it.
    * A value of a ``TCPStore`` has at most 8 MB, so bytes are put up in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import GroupError

__all__ = ["Board"]

PIECE = 1 << 22
"""Bytes of a piece."""


class Board:
    """Notes in JSON, lists of them, and bytes, under names.

    Args:
        store: store that holds the notes.
        place: name of the place in errors.
        name: name of the meeting, where a place has several.
    """

    def __init__(self, store: Store, place: str, name: str = "") -> None:
        self.store, self.place = PrefixStore(f"gradwire/{name}", store), place

    @contextmanager
    def _there(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            # torch's store raises this for a timeout and for a lost connection alike.
            raise GroupError(f"the meeting place {self.place} does not answer: {error}") from error

    def first(self, name: str, note: Any) -> Any:
        """Put up a note unless there is one; return the one that is there now."""
        with self._there():
            # One operation of the store, so that two writers find the same note.
            return json.loads(self.store.compare_set(name, "", json.dumps(note)))

    def put(self, name: str, note: Any) -> None:
        """Put up a note, replacing another one."""
        with self._there():
            self.store.set(name, json.dumps(note))

    def read(self, name: str) -> Any:
        """Read a note; None if there is none."""
        with self._there():
            return json.loads(self.store.get(name)) if self.store.check([name]) else None

    def look(self, name: str) -> Any:
        """Read a note that others may take down meanwhile; None if there is none.

        ``read`` would wait for one that goes between its two questions until the store's deadline.
        """
        # No JSON text is a question mark.
        found = self._now(name, "?")
        return None if found is None else json.loads(found)

    def wait(self, name: str, seconds: float) -> bool:
        """Return whether a note is there, or comes within so many seconds."""
        try:
            self.store.wait([name], timedelta(seconds=max(seconds, 0.001)))
        except DistStoreError:
            # The wait also ends in this error if the note came at the last moment, so the store is asked once more.
            with self._there():
                return bool(self.store.check([name]))
        except RuntimeError as error:
            raise GroupError(f"the meeting place {self.place} does not answer: {error}") from error
        return True

    def append(self, name: str, note: Any) -> int:
        """Append a note to a list; return its number, from 1."""
        while True:
            with self._there():
                number = int(self.store.add(f"{name}/count", 1))
            # A reader may have taken the entry meanwhile, because it saw the count before the note: then the next one
            # is tried.
            if self.first(f"{name}/{number}", note) is not None:
                return number

    def entries(self, name: str, after: int = 0) -> list[Any]:
        """The notes of a list after number ``after``; None for a place that was counted and had no note yet."""
        with self._there():
            count = int(self.store.add(f"{name}/count", 0))
        return [self.first(f"{name}/{number}", None) for number in range(after + 1, count + 1)]

    def hang(self, name: str, data: bytes) -> int:
        """Put up bytes; return their number."""
        with self._there():
            for i, key in enumerate(pieces(name, len(data))):
                self.store.set(key, data[i * PIECE : (i + 1) * PIECE])  # type: ignore[arg-type]
        return len(data)

    def take(self, name: str, nbytes: int) -> bytes | None:
        """Read bytes that somebody put up; None if they were taken down."""
        found = []
        for i, key in enumerate(pieces(name, nbytes)):
            piece = self._now(key, "?" if nbytes - i * PIECE > 1 else "??")
            if piece is None:
                return None
            found.append(piece)
        return b"".join(found)

    def _now(self, key: str, never: str) -> bytes | None:
        """Read the present value, or None; without waiting, because a ``TCPStore`` wakes all waiters of a key.

        In one question to the store: where somebody takes it down between a look and the reading, a reader would wait
        until the store's deadline.

        Args:
            never: text that is never the value of the key; the store returns it where there is none.
        """
        with self._there():
            found: bytes = self.store.compare_set(key, never, never)
        return None if found == never.encode() else found

    def drop(self, name: str, nbytes: int) -> None:
        """Take down bytes."""
        with self._there():
            for key in pieces(name, nbytes):
                self.store.delete_key(key)

    def remove(self, name: str) -> None:
        """Take down a note, which nobody may wait for any more."""
        with self._there():
            self.store.delete_key(name)

    def drop_list(self, name: str) -> None:
        """Take down a list."""
        with self._there():
            for number in range(1, int(self.store.add(f"{name}/count", 0)) + 1):
                self.store.delete_key(f"{name}/{number}")
            self.store.delete_key(f"{name}/count")


def pieces(name: str, nbytes: int) -> list[str]:
    return [f"{name}/{i}" for i in range(-(-nbytes // PIECE))]
