"""The code that a newcomer copies out of the documentation runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import blocks, side


def run(script: str, folder: Path) -> str:
    """On two workers if it forms a group, as the page says; else alone."""
    file = folder / "train.py"
    file.write_text(script)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = launcher if "init_process_group" in script else []
    done = subprocess.run(
        [sys.executable, *arguments, str(file)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_diff_is_all_it_takes(tmp_path: Path) -> None:
    (diff,) = [block.code for block in blocks("README.md") if block.language == "diff"]
    before, after = side(diff, "-"), side(diff, "+")
    assert "gradwire" not in before
    compile(before, "before", "exec")
    out = run(after, tmp_path)
    # Whether anything is gained is the machine's business; that it was looked at is not.
    assert out.count("gradwire GradwireState: 2 ranks, step 100") == 2
    assert out.count("method    auto, budget 'safe': ") == 2
    assert [float(ratio) >= 0.99 for ratio in re.findall(r"now, ([\d.]+) times fewer", out)] == [True, True]
