"""Plain text: ``train.txt`` and ``test.txt``, read as bytes.

Both are held in memory, with eight bytes for each of theirs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradwire_lab.experiments.data.base import Text, file_of, refuse

__all__ = ["holds", "load"]

LOOKS = "train.txt and test.txt"

_BYTES = tuple(map(chr, range(256)))


def holds(folder: Path) -> bool:
    """Return whether one of the files exists."""
    return any((folder / f"{part}.txt").exists() for part in ("train", "test"))


def load(folder: Path) -> Text:
    """Load the two texts; there is none for validation.

    Raises:
        ConfigError: a file is missing, empty, or not text in UTF-8.
    """
    train, test = _read(folder, "train"), _read(folder, "test")
    digest = hashlib.sha256(hashlib.sha256(train).digest() + hashlib.sha256(test).digest()).hexdigest()
    return Text("plain text", _numbers(train), _numbers(b""), _numbers(test), _BYTES, digest)


def _read(folder: Path, part: str) -> bytes:
    expected = "text in UTF-8"
    path = file_of(folder, f"{part}.txt", expected)
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        refuse(path, f"byte {error.object[error.start]:#04x} at {error.start}", expected)
    if not data:
        refuse(path, "nothing", expected)
    return data


def _numbers(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.int64))
