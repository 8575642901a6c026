"""DAGM2007: textured surfaces, some with a defect that an ellipse marks; one class of the ten at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradwire_lab.experiments.data.base import Grey, Surfaces, refuse, standardised

__all__ = ["holds", "load"]

LOOKS = "Class1/Train/*.PNG and Class1/Train/Label/*_label.PNG, and the same under Test"

_CLASS = "Class1"
"""The one that GRACE's script trains on."""

_LIST = "labels.txt"


def holds(folder: Path) -> bool:
    """Return whether the folder of the class exists, or is this folder."""
    return (_root(folder) / "Train").is_dir() or (_root(folder) / "Test").is_dir()


def load(folder: Path) -> Surfaces:
    """Load the defective images for training, as in the original, and all images of ``Test`` for testing.

    An image without a mask has no defect, unless ``Label/Labels.txt`` is there and says so. Its lines are a number, a
    1 for a defect, the image, a 0 and the mask, between tabs; lines of another form are passed over.

    Raises:
        ConfigError: a part is missing or has no defective image, a defective image has no mask, a mask has no image, an
            image is not 8-bit grey, sizes differ, a side is not a multiple of 16.

    Source:
        M. Wieler, T. Hahn, "Weakly Supervised Learning for Industrial Optical Inspection", DAGM 2007.
    """
    root = _root(folder)
    return standardised("dagm2007", _part(root / "Train", clean=False), _part(root / "Test", clean=True))


def _root(folder: Path) -> Path:
    """Find the class's folder, which some copies nest in another one of the same name."""
    nested = [folder / "raw_images" / "private" / _CLASS, folder / _CLASS / _CLASS, folder / _CLASS]
    return next((path for path in nested if path.is_dir()), folder)


def _part(folder: Path, *, clean: bool) -> tuple[Grey, Grey]:
    files = sorted(_pictures(folder)) if folder.is_dir() else []
    masks = {path.stem.removesuffix("_label"): path for path in _pictures(folder / "Label")}
    if not any(path.stem in masks for path in files):
        refuse(folder, f"{len(files)} images and no mask of one", "a folder of PNG files with masks in Label")
    _matched(folder, {path.stem for path in files}, masks)
    chosen = [path for path in files if clean or path.stem in masks]
    images = [_read(path) for path in chosen]
    for path, image in zip(chosen, images, strict=True):
        _check(path, image, images[0])
    marks = [_read(masks[path.stem]) if path.stem in masks else np.zeros_like(images[0]) for path in chosen]
    for path, mark in zip(chosen, marks, strict=True):
        if mark.shape != images[0].shape:
            refuse(masks[path.stem], _size(mark), f"a mask of {_size(images[0])}, as {path.name}")
    return np.stack(images), np.stack(marks)


def _matched(folder: Path, images: set[str], masks: dict[str, Path]) -> None:
    """Refuse a mask without an image, and a defective image without its mask, which would count as free of defects."""
    for stem in sorted(masks.keys() - images):
        refuse(masks[stem], f"no {stem}.PNG in {folder}", "the mask of an image")
    for stem in sorted((_defective(folder / "Label") & images) - masks.keys()):
        refuse(folder / "Label" / f"{stem}_label.PNG", "no such file", f"the mask of {stem}.PNG, which has a defect")


def _defective(folder: Path) -> set[str]:
    """The images that are listed as defective, if there is a list."""
    lists = [path for path in folder.iterdir() if path.name.lower() == _LIST]
    lines = [line for path in lists for line in path.read_text("utf-8-sig", "replace").splitlines()]
    rows = [[part.strip() for part in line.split("\t")] for line in lines]
    return {Path(row[2]).stem for row in rows if len(row) == 5 and row[1] == "1"}


def _pictures(folder: Path) -> list[Path]:
    """The pictures of a folder, without hidden files, which hold a system's notes."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix.lower() == ".png" and not path.name.startswith(".")]


def _read(path: Path) -> Grey:
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode not in ("L", "1"):
                refuse(path, f"an image of mode {image.mode}", "8-bit grey")
            return np.asarray(image.convert("L")).copy()
    except (OSError, SyntaxError) as error:
        refuse(path, str(error).replace(str(path), "it"), "a PNG image")


def _check(path: Path, image: Grey, first: Grey) -> None:
    if image.shape != first.shape or any(side % 16 for side in image.shape):
        refuse(path, _size(image), f"of the others' size, {_size(first)}, with sides that are multiples of 16")


def _size(image: Grey) -> str:
    return f"{image.shape[1]}x{image.shape[0]} pixels"
