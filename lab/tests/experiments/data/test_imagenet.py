"""ImageNet's folders, with a few small photographs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import load
from gradwire_lab.experiments.tasks.classification import Classification

Image = pytest.importorskip("PIL.Image")

CLASSES = ("n01440764", "n01443537", "n02119789")


def write(root: Path) -> Path:
    for part in ("train", "val"):
        for number, name in enumerate(CLASSES):
            folder = root / part / name
            folder.mkdir(parents=True)
            for shot in range(2):
                mode = "L" if shot else "RGB"
                image = Image.new(mode, (300 + 20 * shot, 260), 40 * number + 20)
                image.save(folder / f"{name}_{shot}.JPEG")
    return root


def test_a_class_is_the_place_of_its_folder(tmp_path: Path) -> None:
    data = load(write(tmp_path), ("cifar10", "imagenet"))
    assert (data.name, len(data.train), len(data.test), data.classes) == ("imagenet", 6, 6, 3)
    x, y = data.train.batch(torch.tensor([0, 5]))
    assert y.tolist() == [0, 2]
    assert x.shape == (2, 3, 224, 224)
    # Of RGB images the generator's number is the red channel, so a third of the mean; grey ones have it in all.
    grey = [20 / 3 / 127.5 - 1, 100 / 127.5 - 1]
    torch.testing.assert_close(x.mean((1, 2, 3)), torch.tensor(grey), atol=0.02, rtol=0)


def test_draws_choose_the_cut_and_the_reflection(tmp_path: Path) -> None:
    root = write(tmp_path)
    ramp = Image.new("L", (448, 256))
    ramp.putdata([column // 2 for _ in range(256) for column in range(448)])
    ramp.save(root / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG", quality=100)
    data = load(root, ("imagenet",)).train
    index = torch.tensor([0])
    left, _ = data.batch(index, torch.tensor([[0.0, 0.0, 0.0]]))
    mirrored, _ = data.batch(index, torch.tensor([[0.0, 0.0, 0.9]]))
    right, _ = data.batch(index, torch.tensor([[0.0, 0.99, 0.0]]))
    assert torch.equal(left.flip(3), mirrored)
    assert right.mean() > left.mean() + 0.5


def test_a_task_reads_it(tmp_path: Path) -> None:
    task = Classification("resnet50", write(tmp_path))
    assert (task.model_name, task.recipe.epochs, task.baselines()) == ("resnet50", 90, {"chance": pytest.approx(1 / 3)})
    assert task.loss(10 * torch.eye(1001)[1:2], torch.tensor([0])).item() < 0.1


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    root = write(tmp_path)
    broken = root / "train" / CLASSES[1] / f"{CLASSES[1]}_1.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=rf"{CLASSES[1]}_1\.JPEG must be a JPEG image, found .*truncated"):
        load(root, ("imagenet",)).train.batch(torch.tensor([3]))
    broken.write_bytes(b"hello")
    with pytest.raises(ConfigError, match=rf"{CLASSES[1]}_1\.JPEG must be a JPEG image, found cannot identify"):
        load(root, ("imagenet",)).train.batch(torch.tensor([3]))
    broken.write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"{CLASSES[1]}_1\.JPEG must be a JPEG image, found 0 bytes"):
        load(root, ("imagenet",))
    broken.unlink()
    broken.symlink_to(root / "gone.JPEG")
    with pytest.raises(ConfigError, match=rf"{CLASSES[1]}_1\.JPEG must be a JPEG image, found .*No such file"):
        load(root, ("imagenet",))
    broken.unlink()
    for file in (root / "val" / CLASSES[2]).iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match=rf"val/{CLASSES[2]} must be a folder of JPEG files, found none"):
        load(root, ("imagenet",))
    (root / "val" / CLASSES[2]).rmdir()
    with pytest.raises(
        ConfigError, match=rf"val must be the 3 classes of .*train, found {CLASSES[2]} in one of them only"
    ):
        load(root, ("imagenet",))
    (root / "val" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    with pytest.raises(
        ConfigError, match="val must be a folder for each class, as the script valprep makes it, found images"
    ):
        load(root, ("imagenet",))
