"""Every example runs as its first lines say, and what it trains learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
DEADLINE = 800.0


def torchrun(script: str, *arguments: str) -> str:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, str(FOLDER / script), *arguments], capture_output=True, text=True, timeout=DEADLINE, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(figure) for figure in found.groups()]


@pytest.mark.parametrize(("compressor", "least"), [("topk", 30), ("twobit", 12)])
def test_ddp_in_sixty_lines(compressor: str, least: float) -> None:
    assert len((FOLDER / "ddp.py").read_text().splitlines()) <= 60
    said = torchrun("ddp.py", "--compressor", compressor, "--epochs", "5")
    accuracy, ratio = figures(r"accuracy (\S+) % ratio (\S+)", said)
    assert accuracy > 80
    assert ratio > least


def test_a_gpt_reads_python() -> None:
    said = torchrun("gpt.py", "--steps", "60")
    loss, ratio = figures(r"(?m)^loss (\S+) ratio (\S+)", said)
    # Equally likely letters: 4.85.
    assert loss < 3.2
    assert ratio > 8


def test_workers_of_diloco_learn_what_only_the_others_saw(tmp_path: Path) -> None:
    entry = [sys.executable, "-c", "from gradwire.cli.main import main; main()", "meeting", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(entry, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        place = keeper.stdout.readline().rpartition(" ")[2].strip()
        run = [sys.executable, str(FOLDER / "diloco.py"), "--place", place]

        def worker(name: str, *arguments: str) -> subprocess.Popen[str]:
            command = [*run, "--name", name, "--rounds", "12", *arguments]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)

        try:
            both = [worker(name, "--workers", "2", "--save", str(tmp_path / name)) for name in "01"]
            said = [each.communicate(timeout=DEADLINE)[0] for each in both]
            # What was kept is the state after the last round: nothing is left to do, and all is there.
            again = worker("1", "--save", str(tmp_path / "1")).communicate(timeout=DEADLINE)[0]
        finally:
            keeper.terminate()
    told = [figures(r"worker \d: accuracy (\S+) %, (\S+) times fewer", each) for each in said]
    # Seven kinds of ten are all that one of them ever sees.
    assert told[0][0] == told[1][0] > 75
    assert told[1][1] > 100
    assert figures(r"accuracy (\S+) %", again) == [told[1][0]]
