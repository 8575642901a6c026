"""The examples run as they stand, on two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

RUNS: dict[str, tuple[list[str], str]] = {
    "metrics": (["--folder", "."], r"rows 4 ratio (\d+\.\d)"),
    "hf_trainer": ([], r"steps 20 ratio (\d+\.\d)"),
    "lightning_ddp": ([], r"steps 40 ratio (\d+\.\d)"),
}
"""Example -> its arguments, and what rank 0 says at the end."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    arguments, told = RUNS[name]
    script = [str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script], cwd=tmp_path,
        capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(told, done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 5
