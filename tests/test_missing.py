"""The summary of what was not tested, in a run of its own, on one process and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_gpu(number):
    pytest.skip("there is no CUDA device")

@pytest.mark.skipif(True, reason="no sshd here: apt-get install openssh-server")
def test_ssh():
    pass

def test_not_for_want_of_anything():
    pytest.skip("sends steps of its own unit; its residual bounds what is missing")

def test_unknown():
    pytest.skip("the moon is full")
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_each_thing_that_was_missing_has_one_line(processes: str, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.missing", "-n", processes, "test_some.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("not tested here")] == [
        "not tested here: GPU kernels and NCCL on a GPU: 3 tests (takes an NVIDIA GPU and torch's CUDA build)",
        "not tested here: gradwire launch over ssh: 1 test (takes apt-get install openssh-server)",
        "not tested here: the moon is full: 1 test",
    ]
