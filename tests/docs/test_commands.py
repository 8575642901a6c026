"""Every command of the documentation runs, or says to its readers why it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Block, indented, of, write_files
from tests.house.source import ROOT

README = {
    "make demo": "tests/demo runs it",
    "make test": "this is it",
    "gradwire advise": "tests/cli/test_advise.py runs it on a smaller model",
    "gradwire launch": "tests/cli/test_launch.py runs the example",
    "gradwire replay": "needs root; tests/bench/netlab runs one where there is root",
}
"""Commands that stand indented in the README, by their first words, and where they are tested."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", of("shell"), ids=str)
def test_commands(block: Block, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    done = subprocess.run(["bash", "-eu", "-c", block.code], cwd=tmp_path, env=environment(tmp_path), text=True,
                          capture_output=True, timeout=280)  # fmt: skip
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def environment(folder: Path) -> dict[str, str]:
    """That of an installed gradwire. An environment that borrows another one's torch may lack its torchrun."""
    (folder / "bin").mkdir()
    shim = folder / "bin" / "torchrun"
    shim.write_text('#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
    shim.chmod(0o755)
    paths = [str(Path(sys.executable).parent), os.environ["PATH"], str(shim.parent)]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join(paths)}


def test_commands_of_the_readme_are_tested_somewhere() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    commands = [lines[number - 1].strip() for number in indented("README.md")]
    assert commands
    assert not [command for command in commands if " ".join(command.split()[:2]) not in README]
