"""CIFAR-10 from files of the real form; sparse ones, so that they cost no disk."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import cifar10, load
from gradwire_lab.experiments.data.cifar10 import Cifar
from gradwire_lab.experiments.tasks.classification import Classification

FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def write(folder: Path, size: int = 30_730_000) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        with (folder / name).open("wb") as file:
            record = np.arange(3072, dtype=np.uint8)
            file.write(bytes([number]) + record.tobytes() + bytes([9]) + record[::-1].tobytes())
            file.truncate(size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("data")
    write(made / "cifar-10-batches-bin")
    return made


def test_records_are_a_label_and_three_planes(folder: Path) -> None:
    data = load(folder, ("cifar10", "imagenet"))
    assert (data.name, len(data.train), len(data.test), data.classes) == ("cifar10", 50_000, 10_000, 10)
    x, y = data.train.batch(torch.tensor([0, 1, 10_000]))
    assert y.tolist() == [0, 9, 1]
    assert x.shape == (3, 3, 32, 32)
    assert x[0, 1, 0, 2].item() == pytest.approx((1026 % 256) / 127.5 - 1)
    assert data.test.batch(torch.tensor([0]))[1].tolist() == [5]
    task = Classification("resnet20", folder)
    assert (task.model_name, task.recipe.epochs, task.steps(1)) == ("resnet20", 328, 195)
    assert tuple(next(task.shares(0, 1, 4))[0].shape) == (64, 3, 32, 32)


def test_augmentation_shifts_and_reflects() -> None:
    images = torch.arange(1, 3 * 32 * 32 + 1).remainder(200).add(20).to(torch.uint8).view(1, 3, 32, 32)
    data = Cifar(images, torch.zeros(1, dtype=torch.int64))
    index, middle = torch.tensor([0]), 4.5 / 9
    plain, _ = data.batch(index)
    same, _ = data.batch(index, torch.tensor([[middle, middle, 0.0]]))
    mirrored, _ = data.batch(index, torch.tensor([[middle, middle, 0.9]]))
    moved, _ = data.batch(index, torch.tensor([[0.0, middle, 0.0]]))
    assert torch.equal(plain, same)
    assert torch.equal(plain.flip(3), mirrored)
    assert torch.equal(moved[:, :, 4:], plain[:, :, :-4])
    assert (moved[:, :, :4] == -1).all()


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "all", size=30_729_999)
    expected = "10,000 records of 3,073 bytes, 30,730,000 in all"
    with pytest.raises(ConfigError, match=rf"data_batch_1\.bin must be {expected}, found 30,729,999 bytes"):
        cifar10.load(tmp_path / "all")


def test_a_missing_file_and_a_wrong_label_are_named(tmp_path: Path) -> None:
    write(tmp_path / "all")
    with (tmp_path / "all" / "test_batch.bin").open("r+b") as file:
        file.seek(3073 * 7)
        file.write(bytes([10]))
    with pytest.raises(
        ConfigError, match=r"test_batch\.bin must be records with labels 0 to 9, found label 10 in record 7"
    ):
        cifar10.load(tmp_path / "all")
    (tmp_path / "all" / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigError, match=r"data_batch_3\.bin must be .*, found no such file"):
        cifar10.load(tmp_path / "all")


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({b"data": b""}))
    with pytest.raises(ConfigError, match=r"data_batch_1 is a pickle, which may run code .* use the binary version"):
        load(tmp_path, ("cifar10",))


def test_a_folder_of_something_else_says_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(
        ConfigError, match=r"must hold one of \(cifar10: data_batch_1\.bin .*; imagenet: .*\), found notes\.txt"
    ):
        Classification(folder=tmp_path)
    with pytest.raises(ConfigError, match="nowhere is not there, or is not a folder"):
        Classification(folder=tmp_path / "nowhere")
