"""The command: files in, a page, tables and JSON out."""

import json

import pytest

from lab.tests.report.made import record, replayed, seeds


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    runs = [*seeds("none", 0.97, 0.98, 0.99), *seeds("topk", 0.90, 0.92)]
    runs.append(record("dgc", None, status="failed", error="worker 1 died"))
    rows = [replayed("ddp", "1gbit", 0.2), replayed("topk", "1gbit", 0.1)]
    path.write_text("".join(f"{line}\n" for line in [*(run.to_json() for run in runs), *map(json.dumps, rows)]))
    return path


def test_the_terminal_shows_what_the_page_shows(gradwire, results, tmp_path):
    done = gradwire("report", str(results), "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "machine: a machine" in lines
    (topk,) = [line.split() for line in lines if line.startswith("topk") and "worse" in line]
    assert topk == ["topk", "91.00", "1.41", "-7.00", "worse", "1.00", "1,000"]
    assert any(line.startswith("dgc") and "failed" in line for line in lines)
    assert any("Noise floor: 3.51" in line for line in lines)
    assert "<h1>gradwire: what was measured</h1>" in (tmp_path / "report.html").read_text()


def test_json_has_figures_and_nothing_else_is_written(gradwire, results):
    found = json.loads(gradwire("report", str(results), "--json", "-").stdout)
    assert found["facts"]["seeds"] == "0, 1, 2"
    (table,) = found["tables"]["quality_table"]
    rows = {row["method"]: row for row in table["rows"]}
    assert rows["topk"]["top-1, %"] == pytest.approx(91.0)
    assert rows["topk"]["verdict"] == "worse"
    assert rows["none"]["change"] is None
    (links,) = found["tables"]["links_table"]
    assert {row["method"]: row["1 Gbit/s, x"] for row in links["rows"]} == {"ddp": 1.0, "topk": 2.0}


def test_markdown_goes_between_its_markers(gradwire, results, tmp_path):
    page = tmp_path / "results.md"
    page.write_text("before\n<!-- quality -->\nold\n<!-- end of quality -->\nafter\n")
    assert gradwire("report", str(results), "--markdown", str(page)).exit_code == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- quality -->\nMeasured on")
    assert text.endswith("\n<!-- end of quality -->\nafter\n")
    assert "old" not in text
    assert "| `topk` | 91.00 ± 1.41 (-7.00) | 2 | 1,000 |" in text
    assert "replayed" not in text
    page.write_text("<!-- links -->\n<!-- end of links -->\n")
    gradwire("report", str(results), "--markdown", str(page))
    assert "| `topk` | 100.0 | 2.00 |" in page.read_text()
    assert "±" not in page.read_text()
    alone = tmp_path / "alone.md"
    gradwire("report", str(results), "--markdown", str(alone))
    assert "| `topk` | 91.00" in alone.read_text()
    assert "| `topk` | 100.0 | 2.00 |" in alone.read_text()
    written = alone.read_text()
    gradwire("report", str(results), "--markdown", str(alone))
    assert alone.read_text() == written, "a new file has the markers"


def test_a_page_without_markers_is_left_as_it_is(gradwire, results, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("of my own\n")
    done = gradwire("report", str(results), "--markdown", str(notes))
    assert done.exit_code == 2
    assert "--markdown must name a new file, or a page with the markers <!-- quality -->" in done.stderr
    assert notes.read_text() == "of my own\n"


def test_wrong_input_is_one_clear_line_and_leaves_no_page(gradwire, results, tmp_path):
    with results.open("a") as file:
        file.write('{"what": "else"}\n')
    done = gradwire("report", str(results), "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 2
    assert "results.jsonl, line 9: a line must be a run of 'gradwire train'" in done.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("option", ["-o", "--markdown", "--static"])
def test_what_cannot_be_written_is_refused_before_the_work(gradwire, tmp_path, option):
    (tmp_path / "file").write_text("no folder")
    destination = tmp_path / "file" / "report.html"
    done = gradwire("report", str(tmp_path / "gone.jsonl"), option, str(destination))
    assert done.exit_code == 2
    assert "cannot be written: Not a directory" in " ".join(done.stderr.split())
    assert "gone.jsonl" not in done.stderr


@pytest.mark.parametrize("option", ["-o", "--markdown"])
def test_a_folder_that_is_not_there_is_no_place_for_a_file(gradwire, results, tmp_path, option):
    done = gradwire("report", str(results), option, str(tmp_path / "gone" / "report.html"))
    assert done.exit_code == 2
    assert "cannot be written: No such file or directory" in " ".join(done.stderr.split())


def test_a_folder_of_plots_is_made_only_by_the_work(gradwire, tmp_path):
    done = gradwire("report", str(tmp_path / "gone.jsonl"), "--static", str(tmp_path / "new" / "plots"))
    assert "gone.jsonl: no file of results" in done.stderr
    assert not (tmp_path / "new").exists()
