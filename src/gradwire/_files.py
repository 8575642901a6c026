"""Files that are written whole or not at all, and what JSON can say in them."""

import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["RenamedError", "for_json", "replace_file", "replace_text", "sync"]


class RenamedError(OSError):
    """A file was replaced, and it is not known whether the disk has its name."""


def for_json(value: Any) -> Any:
    """Replace every number that JSON does not have by None, which becomes null.

    >>> for_json({"loss": [1.5, float("nan")]})
    {'loss': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {name: for_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_file(path: str | Path, write: Callable[[Path], object], *, by: Path | None = None) -> None:
    """Let ``write`` make a file beside ``path``, flush it to the disk, and rename it to ``path``.

    Args:
        path: file to replace. It is replaced when everything is on the disk, and stays as it is if writing fails. A
            link is followed. A pipe, a device or anything else that is no file cannot be replaced and is written to.
        write: function that writes the new content to the path with which it is called.
        by: path in the same folder that ``write`` is called with, for a file that nobody else replaces: the next call
            overwrites what an interrupted one has left there. None stands for a path that nobody else has.

    Raises:
        RenamedError: the new file is there, and may not survive a power cut.
        OSError: the file cannot be written, because the disk is full for example.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        try:
            write(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}") if by is None else by
    try:
        temporary.touch(exist_ok=by is not None)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o7777)
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        # The name that the caller knows.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    try:
        sync(path.parent)
    except OSError as error:
        raise RenamedError(error.errno, error.strerror, str(path)) from error


def replace_text(path: str | Path, text: str) -> None:
    """Replace a file by a text in UTF-8, as ``replace_file`` does."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
