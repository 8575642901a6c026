import dataclasses
import json
import math

import pytest

from gradwire_lab.experiments.convergence import ConvergenceRow
from gradwire_lab.simulation.run import Case


@pytest.mark.timeout(600)
def test_a_method_that_misses_the_goal_ends_with_exit_code_1_and_is_in_the_tables(gradwire, tmp_path):
    page, figures = tmp_path / "convergence.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- convergence -->\nold\n<!-- end of convergence -->\nafter\n")
    # A threshold that nothing ever passes: only biases and norms learn.
    done = gradwire(
        "check",
        "convergence",
        "--method",
        "bf16",
        "--method",
        "twobit:threshold=1e6",
        "--workers",
        "2",
        "--residual-dtype",
        "bfloat16",
        "--seeds",
        "1",
        "--epochs",
        "2",
        "--json",
        str(figures),
        "--markdown",
        str(page),
    )
    rows = {row["method"]: row for row in json.loads(figures.read_text())}
    silent = "twobit:threshold=1e6 bfloat16"
    assert list(rows) == ["none", "bf16", silent]
    assert rows[silent]["failed"]
    assert [row["state_bytes"] for row in rows.values()] == [0, 0, 2 * 18752]
    assert rows["none"]["reached"]
    assert done.exit_code == 1
    assert f"{silent}, 2 workers: " in done.stderr
    assert "FAILED" in done.stdout
    text = page.read_text()
    assert text.startswith("before\n<!-- convergence -->\n2 epochs, 1 seed:\n\n| method | 2 workers |")
    assert text.endswith("|\n<!-- end of convergence -->\nafter\n")
    assert "\nold\n" not in text
    assert f"| [`{silent}`](ternary.md#twobit) |" in text


@pytest.mark.timeout(600)
def test_all_that_reach_it_end_with_exit_code_0(gradwire, tmp_path):
    table = tmp_path / "table.md"
    arguments = ["--method", "none", "--workers", "2", "--seeds", "1", "--epochs", "1"]
    done = gradwire("check", "convergence", *arguments, "--json", "-", "--markdown", str(table))
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["reached"]
    assert row["bytes_per_step"] == 4 * 19026
    assert "\n| method |" in table.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "towbit"), "unknown compressor 'towbit': did you mean 'twobit'?"),
        (("--workers", "1"), "1 is not in the range"),
        (("--seeds", "0"), "0 is not in the range x>=1"),
        (("--residual-dtype", "float16"), "'float16' is not one of 'float32', 'bfloat16'"),
        (("--markdown", ".", "--method", "none"), "is a directory"),
    ],
)
def test_bad_input_is_one_clear_line(gradwire, arguments, message):
    done = gradwire("check", "convergence", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_simulation_that_is_stopped_says_how_many_runs_it_made(gradwire, monkeypatch):
    made, run = [], Case.run

    def stopped(case, *arguments):
        made.append(case)
        if len(made) > 3:
            raise KeyboardInterrupt
        return run(case, *arguments)

    monkeypatch.setattr(Case, "run", stopped)
    done = gradwire("check", "store", "--seeds", "5", "--fault-class", "none")
    assert done.exit_code == 130
    # The first run warms up, and is not one of them.
    assert "0 of 2 runs failed, " in done.stderr
    assert ", 3 were not made" in done.stderr


def test_rows_are_stored_as_they_come_and_none_without_an_uncompressed_run(gradwire, monkeypatch, tmp_path):
    figures = tmp_path / "figures.json"
    alone = ("check", "convergence", "--method", "topk", "--json")

    def given(*rows, last=None):
        def made(*_):
            yield from rows
            if last is not None:
                raise last

        monkeypatch.setattr("gradwire_lab.experiments.convergence.rows", made)

    good = ConvergenceRow("topk", {}, 2, 1, (0.9,), 0.9, 8.0, 2.0, 0, identical=True, reason="", misses="")
    lost = dataclasses.replace(good, accuracies=(), baseline=math.nan, error="no uncompressed run")
    given(good, last=KeyboardInterrupt())
    assert gradwire(*alone, str(figures)).exit_code == 130
    assert [row["method"] for row in json.loads(figures.read_text())] == ["topk"]
    assert [row["method"] for row in json.loads(gradwire(*alone, "-").stdout)] == ["topk"]
    given(lost)
    done = gradwire(*alone, str(figures))
    assert done.exit_code == 1
    assert "FAILED: no uncompressed run" in done.stdout
    assert [row["accuracies"] for row in json.loads(figures.read_text())] == [[0.9]]
    given(good, lost)
    assert gradwire(*alone, str(figures)).exit_code == 1
    assert [row["reached"] for row in json.loads(figures.read_text())] == [True]
