"""Every example runs as its first lines say, and what it trains learns.

The processes fork: torchrun itself starts what tests/smoke and tests/house/test_readme.py run.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.forked import Forked

FOLDER = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
DEADLINE = 800.0


def ended_well(process: Forked) -> str:
    """The output of an example."""
    said, wrong = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, wrong
    return str(said)


def two_ranks(script: str, *arguments: str) -> str:
    """Run a script on two ranks, which find what torchrun gives them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "examples",
    }
    ranks = [
        Forked(
            [str(FOLDER / script), *arguments],
            {**ENVIRONMENT, **job, "RANK": rank, "LOCAL_RANK": rank},
            subprocess.PIPE,
            subprocess.PIPE,
        )
        for rank in "01"
    ]
    return "".join([ended_well(rank) for rank in ranks])


def figures(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(figure) for figure in found.groups()]


@pytest.mark.parametrize(("compressor", "least"), [("topk", 30), ("twobit", 12)])
def test_ddp_in_sixty_lines(compressor: str, least: float) -> None:
    assert len((FOLDER / "ddp.py").read_text().splitlines()) <= 60
    said = two_ranks("ddp.py", "--compressor", compressor, "--epochs", "5")
    accuracy, ratio = figures(r"accuracy (\S+) % ratio (\S+)", said)
    assert accuracy > 80
    assert ratio > least


def test_a_gpt_reads_python() -> None:
    said = two_ranks("gpt.py", "--steps", "60")
    loss, ratio = figures(r"(?m)^loss (\S+) ratio (\S+)", said)
    # Equally likely letters: 4.85.
    assert loss < 3.2
    assert ratio > 8


def test_a_loop_like_that_of_nanogpt_ends_in_the_loss_without_compression(tmp_path: Path) -> None:
    told = {}
    for compressor in ("none", "blockwise8"):
        said = two_ranks("nanogpt.py", "--steps", "60", "--compressor", compressor, "--folder", str(tmp_path))
        told[compressor] = figures(r"(?m)^loss (\S+) ratio (\S+)", said)
    (exact, _), (loss, ratio) = told.values()
    assert exact < 2.8
    # Three seeds without compression: 2.680, 2.674, 2.674. This is three times their standard deviation.
    assert abs(loss - exact) < 0.01
    assert ratio > 3.5
    kept = torch.load(tmp_path / "ckpt-1.pt", weights_only=True)
    assert (kept["step"], kept["gradwire"]["step"]) == (50, 50)


def test_workers_of_diloco_learn_what_only_the_others_saw(tmp_path: Path) -> None:
    entry = ["-m", "gradwire", "meeting", "--bind", "127.0.0.1:0"]
    keeper = Forked(entry, stdout=subprocess.PIPE)
    try:
        place = keeper.stdout.readline().decode().rpartition(" ")[2].strip()
        run = [str(FOLDER / "diloco.py"), "--place", place]

        def worker(name: str, *arguments: str) -> Forked:
            command = [*run, "--name", name, "--rounds", "12", "--save", str(tmp_path / name), *arguments]
            return Forked(command, ENVIRONMENT, subprocess.PIPE, subprocess.PIPE)

        said = [ended_well(each) for each in [worker(name, "--workers", "2") for name in "01"]]
        # What was kept is the state after the last round: nothing is left to do, and all is there.
        again = ended_well(worker("1"))
    finally:
        keeper.terminate()
        keeper.wait(DEADLINE)
    told = [figures(r"worker \d: accuracy (\S+) %, (\S+) times fewer", each) for each in said]
    # Seven kinds of ten are all that one of them ever sees.
    assert told[0][0] == told[1][0] > 75
    assert told[1][1] > 100
    assert figures(r"accuracy (\S+) %", again) == [told[1][0]]
