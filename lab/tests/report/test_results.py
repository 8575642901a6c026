"""Lines of result files that are recognised, and those that are refused."""

from __future__ import annotations

import json
import math

import pytest

from gradwire.errors import ConfigError
from gradwire_lab import report
from lab.tests.report.made import record, replayed, timed


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


def changed(line, **values):
    """A line as JSON with other values; one that is ``...`` is left out."""
    return json.dumps({name: value for name, value in (line | values).items() if value is not ...})


RUN, REPLAY = json.loads(record().to_json()), replayed("topk", "none", 1.0)
CODEC = timed("topk", "encode", 8, [1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(RUN, settings=None), "settings must be an object, got None"),
        (changed(RUN, environment=None), "environment must be an object, got None"),
        (changed(RUN, environment={"jobs": "4"}), "environment.jobs must be an integer, got '4'"),
        (changed(RUN, quality="0.9"), "quality must be a number or null, got '0.9'"),
        (changed(RUN, quality=True), "quality must be a number or null, got True"),
        (changed(RUN, measures={"top-1": "high"}), "measures must be an object, each value a number, got .*high"),
        (changed(RUN, measures=None), "measures must be an object, got None"),
        (changed(RUN, history=[3]), "history, each point must be an object, got 3"),
        (changed(RUN, history=[RUN["history"][0] | {"loss": "x"}]), "history.loss must be a number, got 'x'"),
        (changed(RUN, history=None), "history must be a list, got None"),
        (changed(RUN, settings=RUN["settings"] | {"workers": "2"}), "settings.workers must be an integer, got '2'"),
        (changed(RUN, steps=None), "steps must be an integer, got None"),
        (changed(REPLAY, params=...), "a row of a replay must have params"),
        (changed(REPLAY, params=3), "params must be an object or null, got 3"),
        (changed(REPLAY, link="fast"), "rate must be written as 100mbit"),
        (changed(REPLAY, link=None), "link must be a string, got None"),
        (changed(REPLAY, seconds="1"), "seconds must be a number > 0, got '1'"),
        (changed(REPLAY, seconds_low=...), "seconds_low must be a number > 0, got None"),
        (changed(REPLAY, seconds=0), "seconds must be a number > 0, got 0"),
        (changed(CODEC, method="nothing"), "unknown compressor 'nothing'"),
        (changed(CODEC, params={"what": 1}), "params must be those of topk, which has no 'what'"),
        (changed(CODEC, size="8"), "size must be an integer, got '8'"),
        (changed(CODEC, samples=[]), r"samples must be a list of seconds, got \[\]"),
        (changed(CODEC, samples=[1.0, None]), "samples, each must be a number > 0, got None"),
        (changed(CODEC, wire_bits_per_element=...), "wire_bits_per_element must be a number, got None"),
    ],
)
def test_a_field_that_is_not_what_it_must_be_is_named_with_file_and_line(tmp_path, text, message):
    path = written(tmp_path / "wrong.jsonl", record().to_json(), text)
    with pytest.raises(ConfigError, match=f"wrong.jsonl, line 2: {message}"):
        report.read([path])


def test_a_run_that_diverged_is_read_back_as_one(tmp_path):
    path = written(tmp_path / "r.jsonl", record("topk", float("inf"), measures={"top-1": float("nan")}).to_json())
    (run,) = report.read([path]).runs
    assert not math.isfinite(run.quality)
    assert math.isnan(run.measures["top-1"])


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
