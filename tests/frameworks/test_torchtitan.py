"""torchtitan's own trainer, on two real processes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")

NOISE = 0.1
"""Three seeds without compression end at 3.44, 3.51 and 3.47: three times their standard deviation."""


def trained(compressor: str, folder: Path) -> tuple[float, float]:
    """The loss at the end, and the ratio."""
    script = [str(ROOT / "examples" / "torchtitan_debug.py"), "--compressor", compressor]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"(?m)^loss (\S+) ratio (\S+)$", done.stdout)
    assert found, done.stdout
    return float(found[1]), float(found[2])


def test_it_ends_in_the_loss_without_compression(tmp_path: Path) -> None:
    exact, one = trained("none", tmp_path)
    loss, ratio = trained("qsgd:bits=4", tmp_path)
    # Equally likely tokens: 7.62.
    assert exact < 4
    assert abs(loss - exact) < NOISE
    assert one < 1.01
    assert ratio > 7
