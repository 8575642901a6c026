"""Penn Treebank's three files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.experiments.data import load, ptb
from gradwire_lab.experiments.tasks.language import LanguageModelling

TRAIN = " the cat sat on the mat \n a N <unk> cat \n"


def write(root: Path, **texts: str) -> Path:
    folder = root / "simple-examples" / "data"
    folder.mkdir(parents=True)
    for part, text in ({"train": TRAIN, "valid": " the mat \n", "test": " a cat \n"} | texts).items():
        (folder / f"ptb.{part}.txt").write_text(text)
    return folder


def test_words_are_ordered_by_how_often_they_come(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path, ("ptb",))
    assert data.words == ("<eos>", "cat", "the", "<unk>", "N", "a", "mat", "on", "sat")
    assert data.train.tolist() == [2, 1, 8, 7, 2, 6, 0, 5, 4, 3, 1, 0]
    assert data.test.tolist() == [5, 1, 0]
    assert len(data.digest) == 64


def test_a_task_reads_it_in_windows_of_35(tmp_path: Path) -> None:
    write(tmp_path, train=TRAIN * 200, test=TRAIN * 40)
    task = LanguageModelling(folder=tmp_path)
    assert (task.model_name, task.recipe.epochs, task.sizes()) == ("lstm", 25, {"vocabulary": 9})
    assert task.steps(1) == (len(task.data.train) // 20 - 1) // 35 == sum(1 for _ in task.shares(0, 0, 1))
    assert tuple(next(task.shares(0, 1, 4))[0].shape) == (5, 35)


def test_a_text_without_a_window_is_refused_before_the_first_step(tmp_path: Path) -> None:
    write(tmp_path / "train", test=TRAIN * 40)
    with pytest.raises(ConfigError, match=r"Recipe\.batch must be at most 0, .* ptb .*, got 20"):
        LanguageModelling(folder=tmp_path / "train").shares(0, 0, 1)
    write(tmp_path / "test", train=TRAIN * 200)
    with pytest.raises(ConfigError, match="words of the test text of ptb must be at least 360, got 3"):
        LanguageModelling(folder=tmp_path / "test").shares(0, 0, 1)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            {"test": " the dog \n"},
            r"ptb\.test\.txt must be words of ptb\.train\.txt and <unk> for all others, found 'dog'",
        ),
        ({"valid": "\n"}, r"ptb\.valid\.txt must be .*, found no word"),
        (
            {"train": TRAIN + " the ca"},
            r"ptb\.train\.txt must be .*the last line ended too, found .*the ca' at its end",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, texts: dict[str, str], said: str) -> None:
    folder = write(tmp_path, **texts)
    with pytest.raises(ConfigError, match=said):
        ptb.load(folder)


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "ptb.valid.txt").write_bytes(b" the \xff mat \n")
    with pytest.raises(ConfigError, match=r"ptb\.valid\.txt must be sentences, .* found byte 0xff at 5"):
        ptb.load(folder)
    (folder / "ptb.valid.txt").unlink()
    with pytest.raises(
        ConfigError, match=r"ptb\.valid\.txt must be sentences, one a line, in UTF-8, found no such file"
    ):
        ptb.load(folder)
