"""ImageNet (ILSVRC-2012) as folders of JPEG files, one folder for each class."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradwire_lab.experiments.data.base import Images, refuse

__all__ = ["holds", "load"]

LOOKS = "train/n01440764/*.JPEG and val/n01440764/*.JPEG"

_CLASS = re.compile(r"n\d{8}")
_SHORT, _SIDE = 256, 224


@dataclass(frozen=True)
class Photographs:
    """Images stored as files until they are requested; 224 of 256 pixels of the shorter side, at a random place if
    augmented.
    """

    files: tuple[Path, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.files)

    def batch(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        places = torch.tensor([[0.5, 0.5, 0.0]]).expand(len(indices), 3) if draws is None else draws
        images = [_pixels(self.files[i], place) for i, place in zip(indices.tolist(), places.tolist(), strict=True)]
        return torch.stack(images), self.labels[indices]


def holds(folder: Path) -> bool:
    """Return whether there is a folder for a class, or the flat folder in which the validation images are shipped."""
    return any(_classes(folder / part) for part in ("train", "val")) or any((folder / "val").glob("ILSVRC2012_val_*"))


def load(folder: Path) -> Images:
    """Load the files of ``train`` and ``val``; a class is numbered by the position of its folder's name in sorted
    order.

    Raises:
        ConfigError: a part or a class is missing, a class or an image is empty, or the images of ``val`` lie in one
            folder. An image that is cut off is found when it is read.

    Source:
        O. Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", IJCV 2015.
    """
    if any((folder / "val").glob("ILSVRC2012_val_*")):
        refuse(folder / "val", "images in one folder", "a folder for each class, as the script valprep makes it")
    train, val = _classes(folder / "train"), _classes(folder / "val")
    for part, names in (("train", train), ("val", val)):
        if not names:
            refuse(folder / part, "no folder of a class", "folders named like n01440764")
    if train != val:
        odd = min(set(train) ^ set(val))
        refuse(folder / "val", f"{odd} in one of them only", f"the {len(train)} classes of {folder / 'train'}")
    return Images("imagenet", _part(folder / "train", train), _part(folder / "val", train), classes=len(train))


def _classes(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if _CLASS.fullmatch(p.name)) if folder.is_dir() else []


def _part(folder: Path, names: list[str]) -> Photographs:
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in (".jpeg", ".jpg"))
        if not found:
            refuse(folder / name, "none", "a folder of JPEG files")
        empty = next((path for path in found if not _size(path)), None)
        if empty is not None:
            refuse(empty, "0 bytes", "a JPEG image")
        files += found
        labels += [label] * len(found)
    return Photographs(tuple(files), torch.tensor(labels))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        refuse(path, str(error).replace(str(path), "it"), "a JPEG image")


def _pixels(path: Path, place: list[float]) -> Tensor:
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError) as error:
        refuse(path, str(error).replace(str(path), "it"), "a JPEG image")
    scale = _SHORT / min(image.size)
    width, height = (max(_SIDE, round(side * scale)) for side in image.size)
    down, right = (int(draw * (side - _SIDE + 1)) for draw, side in zip(place, (height, width), strict=False))
    image = image.resize((width, height)).crop((right, down, right + _SIDE, down + _SIDE))
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 127.5 - 1
    return pixels.flip(2) if place[2] >= 0.5 else pixels
