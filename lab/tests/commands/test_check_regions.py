import json

import pytest

from gradwire_lab.experiments.regions import RATES


@pytest.mark.timeout(900)
def test_runs_are_made_once_and_shown(gradwire, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RATES, "adamw", (1e-3,))
    given = ("check", "regions", "--steps", "15", "--workers", "2", "--seeds", "1", "--only", "ddp")
    page = ("-o", "page.html", "--markdown", "table.md")
    first = gradwire(*given, *page)
    assert first.exit_code == 0, first.output
    rows = [json.loads(line) for line in (tmp_path / "regions.jsonl").read_text().splitlines()]
    assert [row["settings"]["recipe"]["steps"] for row in rows] == [1, 3]
    assert "nothing is left" in first.stdout
    assert f"| 1 | {rows[1]['quality']:.3f} |  | 32 |" in (tmp_path / "table.md").read_text()
    assert "training between regions" in (tmp_path / "page.html").read_text()
    again = gradwire(*given)
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert len((tmp_path / "regions.jsonl").read_text().splitlines()) == 2


def test_without_time_or_with_dry_run_nothing_is_trained(gradwire, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dry = gradwire("check", "regions", "--refit", "--seeds", "0", "--dry-run")
    assert (dry.exit_code, dry.stdout.splitlines()[-1]) == (0, "14 runs left")
    assert not (tmp_path / "regions.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--seeds", "0;1"), "--seeds must be integers as 0,1,2, got '0;1'"),
        (("--steps", "17"), "steps must be a multiple of 5, >= 15, got 17"),
        (("--only", "dilco"), "diloco"),
        (("--minutes", "0"), "--minutes"),
        (("--refit", "--only", "diloco"), "only must be left out with refit"),
        (("--results", "/proc/none/r.jsonl"), "/proc/none/r.jsonl"),
    ],
)
def test_bad_input_is_refused(gradwire, given, said):
    done = gradwire("check", "regions", *given)
    assert done.exit_code == 2
    assert said in done.stderr
