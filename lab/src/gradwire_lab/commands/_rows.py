"""A file of rows that is complete JSON after each of them, so that a run which is killed leaves what it measured."""

from __future__ import annotations

import io
import json
import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from gradwire._files import for_json

__all__ = ["RowFile", "stored"]

_END = b"\n]\n"


class RowFile:
    """A writer of a JSON array, row by row; the first row replaces what the file held before.

    Each row overwrites the end of the array, in one call of the system, and puts a new end behind itself. Where a file
    cannot be rewritten, such as a pipe, the end is written when it is closed. The text is that of ``json.dumps`` with
    an indent of 2.

    Args:
        path: path of a file that can be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None

    def add(self, row: dict[str, Any]) -> None:
        """Append one row."""
        first = self._file is None
        file = self._file = self._file or io.FileIO(self._path, "w")
        text = ("[\n" if first else ",\n") + textwrap.indent(json.dumps(row, indent=2), "  ")
        if file.seekable():
            end = 0 if first else file.seek(-len(_END), os.SEEK_END)
            try:
                _write(file, text.encode() + _END)
            except OSError:
                # The disk is full: the rows before this one stay, and they had room for their end.
                file.truncate(end)
                file.seek(end)
                _write(file, _END if end else b"[]\n")
                raise
        else:
            _write(file, text.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write an empty array if there was no row, but leave the file as it was if an error was the reason."""
        if self._file is not None:
            if not self._file.seekable():
                _write(self._file, _END)
            self._file.close()
        elif error is None:
            self._path.write_text("[]\n", encoding="utf-8")


@contextmanager
def stored(json_to: str | None) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Give a function that stores a row where ``--json`` says: in the file at once, or with "-" printed at the end,
    also at that of an error or of Ctrl-C.

    Args:
        json_to: path, "-", or None: rows are not stored.
    """
    if json_to is None:
        yield lambda _: None
    elif json_to == "-":
        rows: list[dict[str, Any]] = []
        try:
            yield lambda row: rows.append(for_json(row))
        finally:
            click.echo(json.dumps(rows, indent=2))
    else:
        with RowFile(Path(json_to)) as file:
            yield lambda row: file.add(for_json(row))


def _write(file: io.FileIO, data: bytes) -> None:
    """Write all bytes: one call may take only a part of a very large row, or of what goes to a full pipe."""
    while data:
        data = data[file.write(data) or 0 :]
