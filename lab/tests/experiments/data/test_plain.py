"""Any text in two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import load
from gradwire_lab.experiments.tasks.gpt import GPT


def write(folder: Path, train: bytes = b"abc" * 3000, test: bytes = b"cab" * 400) -> Path:
    (folder / "train.txt").write_bytes(train)
    (folder / "test.txt").write_bytes(test)
    return folder


def test_bytes_are_tokens(tmp_path: Path) -> None:
    text = load(write(tmp_path, "aé\n".encode(), b"b"), ("plain",))
    assert text.train.tolist() == [97, 0xC3, 0xA9, 10]
    assert (text.test.tolist(), len(text.valid), len(text.words)) == ([98], 0, 256)
    assert text.digest == load(tmp_path, ("plain",)).digest
    assert text.digest != load(write(tmp_path, "aé".encode(), b"\nb"), ("plain",)).digest


def test_the_full_size_reads_them_in_windows_of_1024(tmp_path: Path) -> None:
    task = GPT(folder=write(tmp_path)).adjusted({"batch": 4})
    assert (task.model_name, task.sizes(), task.steps(1)) == ("gpt", {"vocabulary": 256}, 2)
    assert [tuple(x.shape) for x, _ in task.shares(0, 1, 2)] == [(2, 1024)] * 2
    assert task.model("meta")(next(task.shares(0, 0, 4))[0].to("meta")).shape == (1, 1024, 256)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"train": b""}, r"train\.txt must be text in UTF-8, found nothing"),
        ({"test": b"a\xff"}, r"test\.txt must be text in UTF-8, found byte 0xff at 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, **files), ("plain",))


def test_a_missing_file_and_texts_that_are_too_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold one of \(plain: train\.txt and test\.txt\), found nothing"):
        load(tmp_path, ("plain",))
    with pytest.raises(ConfigError, match="characters of the test text of plain text must be at least 1025, got 1024"):
        GPT(folder=write(tmp_path, test=b"a" * 1024)).adjusted({"batch": 4}).shares(0, 0, 1)
    with pytest.raises(ConfigError, match=r"Recipe\.batch must be at most 0, .* got 512"):
        GPT(folder=write(tmp_path, train=b"a" * 1024)).shares(0, 0, 1)
    (tmp_path / "test.txt").unlink()
    with pytest.raises(ConfigError, match=r"test\.txt must be text in UTF-8, found no such file"):
        load(tmp_path, ("plain",))
