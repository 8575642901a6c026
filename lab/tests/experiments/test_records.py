import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.compressors.sparse.topk import TopK
from gradwire.errors import ConfigError
from gradwire_lab.experiments.records import Point, Record, RunSettings, append, append_line, check, counted, read
from tests.house.source import ROOT

SETTINGS = RunSettings("classification", "resnet20_small", "digits", "topk", TopK(ratio=0.01).to_config(), workers=4)
RECORD = Record(
    SETTINGS,
    "accuracy",
    higher_is_better=True,
    quality=0.9,
    measures={"accuracy": 0.9},
    steps=22,
    history=(Point(1, 22, 3.5, 0.25, 0.9, 1000.0),),
    seconds={"step": 0.1},
    environment={"torch": "2.13"},
)
REPLAY = {
    "model": "lstm",
    "method": "ddp",
    "link": "none",
    "workers": 2,
    "parameters": 9,
    "options": {},
    "seconds": 0.1,
}


def test_a_line_gives_the_record_back(tmp_path):
    path = tmp_path / "results.jsonl"
    append(path, RECORD)
    append(path, RECORD)
    assert list(read(path)) == [RECORD, RECORD]
    assert json.loads(path.read_text().splitlines()[0])["id"] == SETTINGS.id


def test_the_id_is_that_of_the_settings_in_every_process():
    code = "from lab.tests.experiments.test_records import SETTINGS; print(SETTINGS.id)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [SETTINGS.id]
    others = [RunSettings(**{**vars(SETTINGS), name: value}) for name, value in {"seed": 1, "link": "1gbit"}.items()]
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


@pytest.mark.parametrize("text", ["notes of mine", '{"lr": 0.1}', '{"name', "[1, 2", "12"])
def test_what_somebody_else_wrote_is_never_cut_off(tmp_path, text):
    path = tmp_path / "results.jsonl"
    for before in ("", RECORD.to_json() + "\n"):
        path.write_text(before + text)
        for refused in (lambda: check(path), lambda: append(path, RECORD)):
            with pytest.raises(ConfigError, match=r"results\.jsonl must be a file of results: what it ends with is no"):
                refused()
        assert path.read_text() == before + text


@pytest.mark.parametrize("line", [RECORD.to_json(), json.dumps(REPLAY)], ids=["record", "row"])
def test_a_whole_line_that_lacks_its_end_is_kept(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_text(RECORD.to_json() + "\n" + line)
    check(path)
    before = list(read(path))
    assert before == [RECORD] * (2 if line == RECORD.to_json() else 1)
    append(path, RECORD)
    assert path.read_text() == "\n".join([RECORD.to_json(), line, RECORD.to_json(), ""])


@given(cut=st.integers(1, 100))
def test_a_row_cut_anywhere_does_not_spoil_the_next_line(tmp_path_factory, cut):
    path, row = tmp_path_factory.mktemp("cut") / "results.jsonl", json.dumps(REPLAY)
    assert cut < len(row)
    path.write_text(row[:cut])
    append_line(path, row)
    assert path.read_text() == f"{row}\n"


def test_the_end_is_found_however_long_the_last_line_is(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(RECORD.to_json() + "\n" + '{"schema":1,"error":"' + 300_000 * "x")
    append(path, RECORD)
    assert list(read(path)) == [RECORD, RECORD]
    assert path.read_text().count("\n") == 2


def test_lines_of_other_kinds_are_passed_over(tmp_path):
    path = tmp_path / "results.jsonl"
    codec = {"method": "topk", "params": {}, "op": "encode", "size": 8, "seconds": 1.0}
    for line in (REPLAY, codec):
        append_line(path, json.dumps(line))
        append(path, RECORD)
    assert list(read(path)) == [RECORD, RECORD]


def test_lines_are_json_also_of_a_run_that_diverged(tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    nowhere = Point(1, 22, 3.5, math.nan, math.inf, 1000.0)
    diverged = dataclasses.replace(RECORD, quality=math.nan, measures={"accuracy": -math.inf}, history=(nowhere,))
    path = tmp_path / "results.jsonl"
    append(path, diverged)
    append(path, dataclasses.replace(diverged, status="failed", error="no luck", quality=None))
    line, _ = (json.loads(text, parse_constant=refuse) for text in path.read_text().splitlines())
    assert (line["quality"], line["measures"], line["history"][0]["loss"]) == (None, {"accuracy": None}, None)
    ended, failed = read(path)
    assert math.isnan(ended.quality)
    assert failed.quality is None
    for record in (ended, failed):
        assert all(
            math.isnan(value) for value in (record.measures["accuracy"], *vars(record.history[0]).values())[-3:-1]
        )
        assert record.history[0].bytes_sent == 1000.0
    path.write_text(json.dumps(line | {"quality": math.nan, "measures": {"accuracy": math.inf}}) + "\n")
    (older,) = read(path)
    assert (math.isnan(older.quality), older.measures) == (True, {"accuracy": math.inf})


def test_of_equal_runs_the_last_that_did_not_fail_counts():
    failed = dataclasses.replace(RECORD, status="failed", quality=None)
    better, other = dataclasses.replace(RECORD, quality=0.95), dataclasses.replace(SETTINGS, seed=1)
    assert counted([RECORD, failed])[SETTINGS.id] is RECORD
    assert counted([failed, RECORD, better])[SETTINGS.id] is better
    assert counted([failed, dataclasses.replace(failed, error="again")])[SETTINGS.id].error == "again"
    assert list(counted([RECORD, dataclasses.replace(RECORD, settings=other)])) == [SETTINGS.id, other.id]


@pytest.mark.parametrize("name", ["survey", "claims", "links"])
def test_runs_that_were_recorded_keep_their_ids(name):
    lines = [json.loads(line) for line in (ROOT / "benchmarks" / "results" / f"{name}.jsonl").read_text().splitlines()]
    assert lines
    assert [Record.from_dict(line).settings.id for line in lines] == [line["id"] for line in lines]


def test_other_data_of_the_same_name_is_another_run():
    real = [dataclasses.replace(SETTINGS, data_digest=digest) for digest in ("ab", "cd")]
    assert len({SETTINGS.id, *(settings.id for settings in real)}) == 3
    again = Record.from_dict(json.loads(dataclasses.replace(RECORD, settings=real[0]).to_json()))
    assert again.settings == real[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "a line of schema 2: this version reads up to 1"),
        ({"kind": "walk"}, "must have kind 'train'"),
        ({"settings": {}}, "not complete"),
        ({"measures": None}, "not complete"),
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
