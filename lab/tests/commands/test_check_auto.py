"""``gradwire check auto``: cells are measured once, and their verdicts decide the exit code."""

import json

import pytest

from lab.tests.experiments.test_auto_check import row

CHOSEN = ("--model", "lstm", "--small", "--workers", "2", "--link", "none", "--compute", "0", "--repeats", "1")


@pytest.mark.timeout(600)
def test_a_cell_that_is_there_is_not_measured_again(gradwire, tmp_path):
    file, page = tmp_path / "cells.jsonl", tmp_path / "page.html"
    arguments = ["check", "auto", *CHOSEN, "--steps", "3", "--method", "bf16", "--json", str(file), "-o", str(page)]
    done = gradwire(*arguments)
    assert done.exit_code in (0, 1), done.output
    assert "1 of 1: lstm_small, 2 workers, none, 0 ms computed:" in done.stderr
    (cell,) = [json.loads(line) for line in file.read_text().splitlines()]
    # What stands in the file counts, so that the verdict follows from the figures in it.
    for auto, verdict, code in ((0.9, "holds", 0), (1.1, "missed", 1)):
        methods = {name: {**each, "seconds": 1.0} for name, each in cell["parts"][0]["methods"].items()}
        methods["auto"]["seconds"] = auto
        file.write_text(json.dumps(cell | {"parts": [cell["parts"][0] | {"methods": methods}]}) + "\n")
        done = gradwire(*arguments)
        assert done.exit_code == code
        assert done.stderr == ""
        (line,) = [line for line in done.stdout.splitlines() if "lstm_small" in line]
        assert line.split()[-1] == verdict
        assert "1 row of fewer than 3 repeats" in done.stdout
    assert "auto beside fixed methods" in page.read_text()


def test_mistakes_are_told_before_anything_starts(gradwire, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("notes of mine")
    for arguments, said in (
        (["--model", "lstn"], "unknown model 'lstn'"),
        (["--method", "topc"], "unknown compressor 'topc'"),
        (["--link", "fast"], "rate must be written as 100mbit, 2.5gbit or none, got 'fast'"),
        (["--link", "1gbit,none"], "MatrixCell.links must be links with a rate, where it changes"),
        (["--auto", "topk"], "MatrixCell.auto must be auto"),
        (["--json", str(notes)], "must be a file of results"),
    ):
        done = gradwire("check", "auto", *arguments)
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.split())


def test_a_report_shows_cells(gradwire, tmp_path):
    file = tmp_path / "cells.jsonl"
    cells = [row(auto, repeat=place, within=1.0) for place, auto in enumerate((0.5, 0.6, 0.7))]
    file.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    told = json.loads(gradwire("report", str(file), "--json", "-").stdout)
    (table,) = told["tables"]["auto_verdicts"]
    assert table["rows"][0]["auto / DDP"] == 0.6
    assert table["rows"][0]["verdict"] == "holds"
    assert dict(told["facts"])["results"] == "3 cells"
