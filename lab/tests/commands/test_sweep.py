import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from gradwire_lab.experiments.records import read

SUITE = 'tasks = ["classification"]\nmethods = ["none"]\n'


def test_mistakes_are_told_before_anything_starts(gradwire, tmp_path):
    suite, notes = tmp_path / "suite.toml", tmp_path / "notes.txt"
    suite.write_text(SUITE)
    notes.write_text("notes of mine")
    for arguments, said in (
        (["--results", str(tmp_path / "nowhere" / "results.jsonl")], "cannot be written: No such file or directory"),
        (["--results", str(notes)], "must be a file of results"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--timeout", "inf"], "inf is not in the range"),
        (["--budget", "soon"], "budget must be a time above 0"),
        (["--budget", "0h"], "budget must be a time above 0"),
    ):
        done = gradwire("sweep", str(suite), *arguments)
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.stderr.split()), arguments
    assert notes.read_text() == "notes of mine"


def test_what_is_left_is_said_and_no_file_is_made(gradwire, tmp_path):
    suite, results = tmp_path / "suite.toml", tmp_path / "results.jsonl"
    suite.write_text(SUITE + "seeds = 3\n")
    done = gradwire("sweep", str(suite), "--results", str(results), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "0 runs ended well, 0 failed; left are 3: 3 of classification" in done.stdout
    assert not results.exists()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_leaves_what_has_ended_and_the_same_command_makes_the_rest(tmp_path, jobs):
    """A terminal interrupts all processes of a command."""
    (tmp_path / "suite.toml").write_text(
        SUITE + "seeds = 4\n[task.classification]\nepochs = 1\nrecipe = { steps = 2 }\n"
    )
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "gradwire", "sweep", "suite.toml", "--results", results.name, "--jobs", str(jobs)]
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            deadline = time.monotonic() + 600
            while not (results.exists() and results.read_text().endswith("\n")):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    kept = [record.settings.seed for record in read(results)]
    if len(kept) < 4:
        assert process.returncode == 130, err
        end = f"left are {4 - len(kept)}: {4 - len(kept)} of classification"
        begin = f"stopped; {len(kept)} run{'s' if len(kept) > 1 else ''} that ended are in results.jsonl; {end}"
        assert err.splitlines()[-1].startswith(begin), err
        assert err.splitlines()[-1].endswith("go on with the same command")
    assert "Traceback" not in err
    done = subprocess.run(command, check=False, timeout=800, **options)
    assert done.returncode == 0, done.stderr
    assert sorted(record.settings.seed for record in read(results)) == [0, 1, 2, 3]
