"""DAGM2007's folders, with surfaces of the generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import dagm2007, load, surfaces
from gradwire_lab.experiments.tasks.segmentation import Segmentation

Image = pytest.importorskip("PIL.Image")


def write(root: Path, side: int = 32) -> Path:
    for part, seed in (("Train", 1), ("Test", 2)):
        folder = root / "Class1" / part
        (folder / "Label").mkdir(parents=True)
        images, masks = surfaces.pictures(4, side, seed)
        for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
            Image.fromarray(image).save(folder / f"{number:04}.PNG")
            if number != 2:
                Image.fromarray(mask).save(folder / "Label" / f"{number:04}_label.{'PNG' if number else 'png'}", "PNG")
    listed = "".join(f"{n}\t1\t{n:04}.PNG\t0\t{n:04}_label.PNG\n" for n in (0, 1, 3))
    text = f"\N{ZERO WIDTH NO-BREAK SPACE}1\n{listed}2\t0\t0002.PNG\t0\t0\n"
    (root / "Class1" / "Train" / "Label" / "Labels.txt").write_text(text, encoding="utf-8")
    return root


def test_defective_images_train_and_all_images_test(tmp_path: Path) -> None:
    data = load(write(tmp_path), ("dagm2007",))
    assert (data.name, len(data.train), len(data.test)) == ("dagm2007", 3, 4)
    _, masks = surfaces.pictures(4, 32, 1)
    assert np.array_equal(data.train.targets[:, 0].numpy(), masks[[0, 1, 3]] / 255)
    assert data.test.targets.amax((1, 2, 3)).tolist() == [1, 1, 0, 1]
    assert float(data.train.inputs.mean()) == pytest.approx(0, abs=1e-3)
    assert load(tmp_path / "Class1", ("dagm2007",)).name == "dagm2007"
    assert Segmentation(folder=tmp_path).model_name == "unet"


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    root = write(tmp_path)
    train = root / "Class1" / "Train"
    Image.new("RGB", (32, 32)).save(train / "0001.PNG")
    with pytest.raises(ConfigError, match=r"0001\.PNG must be 8-bit grey, found an image of mode RGB"):
        dagm2007.load(root)
    Image.new("L", (48, 32)).save(train / "0001.PNG")
    with pytest.raises(
        ConfigError, match=r"0001\.PNG must be of the others' size, 32x32 pixels, .* found 48x32 pixels"
    ):
        dagm2007.load(root)
    Image.new("L", (32, 32)).save(train / "0001.PNG")
    Image.new("L", (16, 16)).save(train / "Label" / "0001_label.PNG")
    with pytest.raises(
        ConfigError, match=r"0001_label\.PNG must be a mask of 32x32 pixels, as 0001\.PNG, found 16x16 pixels"
    ):
        dagm2007.load(root)
    whole = (train / "0000.PNG").read_bytes()
    (train / "0000.PNG").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"0000\.PNG must be a PNG image, found"):
        dagm2007.load(root)


def test_a_part_without_defects_or_of_an_odd_size_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "odd", side=40)
    with pytest.raises(
        ConfigError, match=r"0000\.PNG must be of .* sides that are multiples of 16, found 40x40 pixels"
    ):
        dagm2007.load(root)
    for mask in (root / "Class1" / "Train" / "Label").iterdir():
        mask.unlink()
    with pytest.raises(
        ConfigError, match="Train must be a folder of PNG files with masks in Label, found 4 images and no mask"
    ):
        dagm2007.load(root)


@pytest.mark.parametrize("name", ["Labels.txt", "labels.txt"])
def test_a_defective_image_whose_mask_was_lost_is_refused(tmp_path: Path, name: str) -> None:
    labels = write(tmp_path) / "Class1" / "Train" / "Label"
    (labels / "Labels.txt").rename(labels / name)
    (labels / "0001_label.PNG").unlink()
    with pytest.raises(
        ConfigError, match=r"0001_label\.PNG must be the mask of 0001\.PNG, which has a defect, found no such file"
    ):
        dagm2007.load(tmp_path)
    (labels / name).write_text("1\nnotes\n0001.PNG 1\n")
    assert len(dagm2007.load(tmp_path).train) == 2


def test_a_mask_of_no_image_is_refused(tmp_path: Path) -> None:
    test = write(tmp_path) / "Class1" / "Test"
    (test / "Label" / "._0001_label.PNG").write_bytes(b"what a system notes")
    assert len(dagm2007.load(tmp_path).test) == 4
    (test / "0001.PNG").unlink()
    with pytest.raises(
        ConfigError, match=r"Label/0001_label\.PNG must be the mask of an image, found no 0001\.PNG in .*Test"
    ):
        dagm2007.load(tmp_path)
