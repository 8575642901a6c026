import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.bench.records import Point, Record, Settings, append, read
from gradwire.compressors.topk import TopK
from gradwire.errors import ConfigError

SETTINGS = Settings("classification", "resnet20_small", "digits", "topk", TopK(ratio=0.01).to_config(), workers=4)
RECORD = Record(
    SETTINGS, "accuracy", higher_is_better=True, quality=0.9, measures={"accuracy": 0.9}, steps=22,
    history=(Point(1, 22, 3.5, 0.25, 0.9, 1000.0),), seconds={"step": 0.1}, environment={"torch": "2.13"},
)  # fmt: skip


def test_a_line_gives_the_record_back(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, RECORD)
    append(path, RECORD)
    assert list(read(path)) == [RECORD, RECORD]
    assert json.loads(path.read_text().splitlines()[0])["id"] == SETTINGS.id


def test_the_id_is_that_of_the_settings_in_every_process():
    code = "from tests.bench.test_records import SETTINGS; print(SETTINGS.id)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [SETTINGS.id]
    others = [Settings(**{**vars(SETTINGS), name: value}) for name, value in {"seed": 1, "link": "1gbit"}.items()]
    assert len({SETTINGS.id, *(other.id for other in others)}) == 3


@given(cut=st.integers(1, 400))
def test_a_line_cut_anywhere_is_no_line_and_the_next_one_is_whole(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "results.jsonl"
    append(path, RECORD)
    with path.open("ab") as file:
        file.write(RECORD.to_json().encode()[:cut])
    assert list(read(path)) == [RECORD]
    append(path, RECORD)
    assert list(read(path)) == [RECORD, RECORD]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "a line of schema 2: this version reads up to 1"),
        ({"kind": "walk"}, "must have kind 'train'"),
        ({"settings": {}}, "not complete"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(tmp_path, change, message):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(json.loads(RECORD.to_json()) | change) + "\n")
    with pytest.raises(ConfigError, match=message) as error:
        list(read(path))
    assert "results.jsonl, line 1: " in str(error.value)


def test_fields_of_later_versions_are_left_out(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(json.loads(RECORD.to_json()) | {"later": 1}) + "\n")
    assert list(read(path)) == [RECORD]
