"""The same training over NCCL: runs where there is a GPU, on as many ranks as there are GPUs, at most four."""

from __future__ import annotations

import pytest
import torch

from gradwire import registry
from gradwire.testing.processes import run_ranks
from tests.integrations.jobs import loss_of, model_of, train_ddp
from tests.integrations.test_ddp import SETTINGS, check_progress, pace, trained

GPUS = min(4, torch.cuda.device_count())

pytestmark = pytest.mark.skipif(GPUS == 0, reason="no CUDA device here")


@pytest.mark.parametrize("compressor", registry.names("compressors"))
def test_ranks_agree_and_learn(compressor: str) -> None:
    results = trained(GPUS, *pace(compressor), "cuda", "nccl")
    check_progress(compressor, results[compressor], results["plain"])


@pytest.mark.parametrize("strategy", ["allgather", "broadcast", "two_phase"])
def test_two_bit_by_every_strategy(strategy: str) -> None:
    options = {**SETTINGS["twobit"], "min_numel": 128, "strategy": strategy}
    results = run_ranks(GPUS, train_ddp, "twobit", 50, options, 0.05, "cuda", backend="nccl")
    assert len({result["digest"] for result in results}) == 1
    assert results[0]["loss"] < 0.5 * loss_of(model_of())
