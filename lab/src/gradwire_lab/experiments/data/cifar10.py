"""CIFAR-10 in its binary version: records of a label and 3,072 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data.base import Images, file_of, refuse

__all__ = ["holds", "load"]

LOOKS = "data_batch_1.bin to data_batch_5.bin and test_batch.bin"

_RECORD = 1 + 3 * 32 * 32
_RECORDS = 10_000
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_PICKLES = ("data_batch_1", "test_batch", "batches.meta")
_MARGIN = 4


@dataclass(frozen=True)
class Cifar:
    """Images stored as bytes until they are requested; augmented by a shift of up to four pixels and a reflection.

    Args:
        pixels: uint8, shape ``(n, 3, 32, 32)``.
        labels: int64, shape ``(n,)``.
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        images = self.pixels[indices]
        if draws is not None:
            images = _moved(images, draws)
        return images.float() / 127.5 - 1, self.labels[indices]


def holds(folder: Path) -> bool:
    """Return whether a folder holds CIFAR-10, also in the version that cannot be read, so that the
    error can name it.
    """
    return any((_root(folder) / name).exists() for name in (*_TRAIN, _TEST, *_PICKLES))


def load(folder: Path) -> Images:
    """Load 50,000 images for training and 10,000 for testing.

    Args:
        folder: folder of the files, or the one above it.

    Raises:
        ConfigError: a file is missing, is of another size, has a label that there is not, or is a pickle.

    Source:
        A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University of Toronto 2009.
    """
    root = _root(folder)
    pickles = [name for name in _PICKLES if (root / name).exists()]
    if pickles and not (root / _TRAIN[0]).exists():
        raise ConfigError(
            f"{root / pickles[0]} is a pickle, which may run code when it is read: use the binary version of CIFAR-10, "
            f"with {LOOKS}"
        )
    parts = [_read(root, name) for name in _TRAIN]
    train = Cifar(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))
    return Images("cifar10", train, _read(root, _TEST), classes=10)


def _root(folder: Path) -> Path:
    for name in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        if (folder / name).is_dir():
            return folder / name
    return folder


def _read(root: Path, name: str) -> Cifar:
    expected = f"{_RECORDS:,} records of {_RECORD:,} bytes, {_RECORDS * _RECORD:,} in all"
    path = file_of(root, name, expected)
    size = path.stat().st_size
    if size != _RECORDS * _RECORD:
        refuse(path, f"{size:,} bytes", expected)
    records = np.fromfile(path, np.uint8).reshape(-1, _RECORD)
    wrong = np.flatnonzero(records[:, 0] > 9)
    if len(wrong):
        refuse(path, f"label {records[wrong[0], 0]} in record {wrong[0]}", "records with labels 0 to 9")
    return Cifar(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(records[:, 0]).long())


def _moved(images: Tensor, draws: Tensor) -> Tensor:
    """Add a black margin to each image, crop it to its size at a random place, and reflect half of the images."""
    padded = F.pad(images, (_MARGIN,) * 4)
    down, right = (draws[:, :2] * (2 * _MARGIN + 1)).long().T
    rows, columns = torch.arange(32) + down[:, None], torch.arange(32) + right[:, None]
    columns = torch.where(draws[:, 2:] < 0.5, columns, columns.flip(1))
    each = torch.arange(len(images))[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
