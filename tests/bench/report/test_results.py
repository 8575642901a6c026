"""What is recognised in files of results, and what is refused."""

from __future__ import annotations

import json

import pytest

from gradwire.bench import report
from gradwire.errors import ConfigError
from tests.bench.report.made import record, replayed, timed


def written(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_are_known_by_what_they_have(tmp_path):
    lines = [
        record().to_json(),
        json.dumps(replayed("ddp", "none", 1.0)),
        "",
        json.dumps(timed("topk", "encode", 8, [1.0])),
    ]
    first = written(tmp_path / "lines.jsonl", *lines)
    second = tmp_path / "array.json"
    second.write_text(json.dumps([timed("topk", "decode", 8, [1.0])], indent=2))
    found = report.read([first, second])
    assert [run.settings.method for run in found.runs] == ["none"]
    assert [row["method"] for row in found.replays] == ["ddp"]
    assert [row["op"] for row in found.codecs] == ["encode", "decode"]
    assert found.files == ["lines.jsonl", "array.json"]


def test_a_run_that_was_repeated_counts_once_and_a_failure_does_not_replace_a_result(tmp_path):
    good, better = record(quality=0.5), record(quality=0.6)
    failed = record(quality=None, status="failed", error="a worker died")
    path = written(tmp_path / "r.jsonl", *(each.to_json() for each in (failed, good, better, failed)))
    found = report.read([path])
    assert [run.quality for run in found.runs] == [0.6]
    assert found.replaced == 3


def test_the_last_line_of_a_file_that_was_cut_off_is_no_line(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(record().to_json() + "\n" + record("topk").to_json()[:-5])
    assert len(report.read([path]).runs) == 1
    path.write_text(record().to_json())
    assert len(report.read([path]).runs) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: a file of results must hold some"),
        ('{"a": 1}\n', r"line 1: a line must be a run of 'gradwire train', a row of .* got .*\"a\": 1"),
        ("\nnonsense\n", "line 2: Expecting value"),
        ("[1]", "element 1: a line must be a run"),
        ('{"kind": "train", "schema": 99}\n', "line 1: a line of schema 99"),
        ('{"kind": "train", "schema": 1}\n', "line 1: a line of results is not complete"),
    ],
)
def test_what_is_no_result_is_an_error_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "wrong.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"wrong.jsonl, {message}"):
        report.read([path])


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.jsonl: no file of results can be read there"):
        report.read([tmp_path / "gone.jsonl"])
