import json

import pytest

from gradwire_lab.commands import _check_run
from gradwire_lab.experiments.run_check import UserScript
from lab.tests.netlab.conftest import here


@pytest.fixture(scope="module", autouse=True)
def _possible():
    reason = here()
    if reason:
        pytest.skip(reason)


def test_a_cell_is_measured_once_and_judged(gradwire, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("check", "run", "--script", "ddp", "--link", "none", "--steps", "12", "--turns", "1", "--json", "r.jsonl")
    done = gradwire(*given)
    assert done.exit_code in (0, 1), done.output  # A goal may be missed in so few steps.
    (row,) = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert {mode: len(found) for mode, found in row["seconds"].items()} == {"plain": 1, "watch": 1, "apply": 1}
    assert row["losses"]["plain"] == row["losses"]["watch"]
    # A single round does not tell.
    assert "not slower than plain by more than 2 %: 0 of 0, 1 not known" in done.stdout
    again = gradwire(*given)
    assert (again.exit_code, again.stdout) == (done.exit_code, done.stdout)
    assert "turn" in done.stderr
    assert "turn" not in again.stderr
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 1


def test_a_script_that_fails_is_a_row_and_one_without_its_packages_is_left_out(gradwire, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(_check_run.SCRIPTS, "ddp", UserScript(("no_such_package",)))
    out = gradwire("check", "run", "--script", "ddp", "--link", "none", "--link", "1gbit")
    assert out.exit_code == 2
    assert out.stderr.count("ddp is left out: it needs no_such_package") == 1
    assert "--script must be one whose packages are installed, got ddp" in out.stderr
    assert out.stdout == ""
    monkeypatch.setattr("gradwire_lab.experiments.run_check.FOLDER", tmp_path)
    (tmp_path / "gan.py").write_text("raise SystemExit(3)\n")
    failed = gradwire("check", "run", "--script", "gan", "--link", "none", "--json", "f.jsonl")
    assert failed.exit_code == 1
    assert "gan, none: COMMAND must train, got one that ended with exit status 3 in a plain turn" in failed.stdout
    assert "error" in json.loads((tmp_path / "f.jsonl").read_text())
