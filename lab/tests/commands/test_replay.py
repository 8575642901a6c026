import json

import pytest

from gradwire_lab.commands.replay import _line


@pytest.mark.timeout(400)
def test_lines_are_json_and_a_failure_ends_with_exit_code_1(gradwire, tmp_path):
    file = tmp_path / "rows.jsonl"
    arguments = ["replay", "lstm", "--small", "--workers", "2", "--steps", "3", "--json", str(file)]
    done = gradwire(*arguments, "--method", "topk:ratio=0.01", "--strategy", "oktopk")
    assert done.exit_code == 1
    assert "lstm_small, 2 workers, none: topk:ratio=0.01" in done.stdout
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert "oktopk" in row["error"]
    assert row["parameters"] == 341_224
    assert gradwire(*arguments, "--baseline").exit_code == 0
    row = json.loads(file.read_text().splitlines()[1])
    assert (row["method"], row["steps"], row["speedup"]) == ("ddp", 3, 1.0)
    assert "samples" not in row


def test_a_row_does_not_stick_to_one_that_was_cut_off(gradwire, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"model": "lstm_small", "param')
    done = gradwire("replay", "lstm", "--small", "--workers", "2", "--steps", "3", "--json", str(file), "--baseline")
    assert done.exit_code == 0, done.output
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert row["method"] == "ddp"


def test_a_row_without_a_baseline_is_shown_without_a_speedup():
    row = {
        "model": "lstm_small",
        "workers": 2,
        "link": "none",
        "method": "bf16",
        "seconds": 0.25,
        "bytes_sent": 4e6,
        "interface_bytes": None,
    }
    shown, compared = _line(row), _line(row | {"speedup": 2.0})
    assert shown.split()[-4:] == ["250.0", "ms", "4.000", "MB"]
    assert compared.split()[-5:] == ["250.0", "ms", "2.00x", "4.000", "MB"]
    assert len(shown) == len(compared)


def test_mistakes_are_told_before_anything_starts(gradwire, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("notes of mine")
    for arguments, said in (
        (["vgg20", "--baseline"], "unknown model 'vgg20': did you mean 'vgg19'?"),
        (["vgg19"], "nothing to replay: give --method, --hook or --baseline"),
        (["vgg19", "--method", "twobits"], "unknown compressor 'twobits'"),
        (["vgg19", "--baseline", "--link", "fast"], "rate must be written as 100mbit, 2.5gbit or none, got 'fast'"),
        (["vgg19", "--baseline", "--json", str(tmp_path / "nowhere" / "rows.jsonl")], "cannot be written: No such"),
        (["vgg19", "--baseline", "--link", "none", "--link", "400gbit"], "must be at most 100gbit in a lab"),
        (["vgg19", "--baseline", "--json", str(notes)], "must be a file of results"),
    ):
        done = gradwire("replay", *arguments)
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.split())
    assert notes.read_text() == "notes of mine"
