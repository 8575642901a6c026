"""Statements of docs/from_torch.md about torch's own hooks, run on two workers."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

from gradwire.testing.processes import RankFailedError, run_ranks
from tests.docs import torch_hooks
from tests.house.source import ROOT

ROWS = (
    "makes every later PowerSGD gradient NaN",
    "`batched_powerSGD_hook` raises",
    "Both quantization hooks raise",
    "`bf16_compress_hook` is refused by a build of torch without NCCL",
    "PowerSGD must start later",
    "is not in `DDP.state_dict()`",
    "a process is aborted",
)
"""The first is run by tests/integrations/test_amp.py, the others here."""


def test_the_page_marks_what_was_run() -> None:
    page = (ROOT / "docs" / "from_torch.md").read_text(encoding="utf-8")
    marked = re.findall(r"^\| \* (.*?) \|", page, re.MULTILINE)
    assert len(marked) == len(ROWS)
    assert all(words in row for words, row in zip(ROWS, marked, strict=True))


@pytest.fixture(scope="module")
def told() -> list[dict]:
    return run_ranks(2, torch_hooks.several)


def test_powersgd_keeps_residuals_by_bucket_and_saves_none(told: list[dict]) -> None:
    for each in told:
        assert each["saved"]["in the checkpoint"] == 0
        assert set(each["saved"]["kept by"]) == {"int"}
        assert re.search(r"ValueError: Expect `start_powerSGD_iter` > 1", each["saved"]["early"])


def test_the_batched_hook_raises_when_it_begins_to_compress(told: list[dict]) -> None:
    assert [each["batched"] for each in told] == [["nothing was raised", "AssertionError: "]] * 2


@pytest.mark.skipif(dist.is_nccl_available(), reason="torch refuses the hook only in a build without NCCL")
def test_the_cast_to_bfloat16_wants_nccl(told: list[dict]) -> None:
    assert all(re.search(r"TypeError: BF16 .* required .*NCCL", each["bf16"]) for each in told)


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="a build for CUDA wants a driver first"
)
@pytest.mark.parametrize("hook", ["pertensor", "perchannel"])
def test_the_quantization_hooks_raise(hook: str) -> None:
    assert all("IndexError" in each for each in run_ranks(2, torch_hooks.simple, hook))


def test_a_process_is_aborted_where_ranks_have_different_settings() -> None:
    with pytest.raises(RankFailedError, match="died without a word"):
        run_ranks(2, torch_hooks.differ)
