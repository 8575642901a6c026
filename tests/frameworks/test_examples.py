"""The examples run as they stand, on two workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import side
from tests.house.source import ROOT

PAGES = ("frameworks.md", "trainers.md")
SHOWN = re.compile(r"`examples/(\w+)\.py`:\n\n```(python|diff)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUNS: dict[str, tuple[list[str], str]] = {
    "accelerate_fsdp2": ([], r"loss 0\.\d+ ratio (\d+\.\d)"),
    "accelerate_loop": ([], r"steps 24 ratio (\d+\.\d)"),
    "metrics": (["--folder", "."], r"rows 4 ratio (\d+\.\d)"),
    "jax_optax": ([], r"steps 40 ratio (\d+\.\d)"),
    "keras_fit": ([], r"steps 40 ratio (\d+\.\d)"),
    "hf_trainer": ([], r"steps 20 loss \d\.\d+ ratio (\d+\.\d)"),
    "lightning_ddp": ([], r"steps 40 ratio (\d+\.\d)"),
    "lightning_fsdp2": ([], r"loss 0\.\d+ ratio (\d+\.\d)"),
}
"""Example -> its arguments, and what rank 0 says at the end."""


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    arguments, told = RUNS[name]
    script = [str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = re.search(told, done.stdout)
    assert found, done.stdout
    assert float(found[1]) > 5


@pytest.mark.parametrize("page", PAGES)
def test_the_page_shows_what_the_examples_run(page: str) -> None:
    shown = SHOWN.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    for name, language, block in shown:
        example = flush((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))
        for part in re.split(r"^@@$\n", block, flags=re.MULTILINE):
            assert flush(side(part, "+") if language == "diff" else part) in example


def test_all_that_runs_is_shown() -> None:
    pages = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES]
    assert {name for page in pages for name, _, _ in SHOWN.findall(page)} >= set(RUNS)


def flush(code: str) -> str:
    """Without what a block is indented by inside its function."""
    return "".join(f"{line.strip()}\n" for line in code.splitlines())
