"""Plain loops, checkpoints and sharded models over NCCL: runs where there is a GPU, as ``test_ddp_cuda`` does."""

from __future__ import annotations

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.integrations.nccl_jobs import loop, replicas, resumed, sharded_model

GPUS = min(4, torch.cuda.device_count())

pytestmark = pytest.mark.skipif(GPUS == 0, reason="no CUDA device here")


def test_a_plain_loop_on_a_stream_of_its_own() -> None:
    assert len(set(run_ranks(GPUS, loop, backend="nccl"))) == 1


def test_a_run_goes_on_bit_for_bit() -> None:
    assert all(run_ranks(GPUS, resumed, backend="nccl"))


def test_a_sharded_model_trains_as_fsdp_alone() -> None:
    results = run_ranks(GPUS, sharded_model, backend="nccl")
    for result in results:
        for way in ("gpu", "offloaded", "mixed"):
            tolerance = {"rtol": 1e-5, "atol": 1e-6} if way != "mixed" else {"rtol": 2e-2, "atol": 2e-3}
            for plain, dense in zip(result[f"{way}/None"], result[f"{way}/none"], strict=True):
                torch.testing.assert_close(dense, plain, **tolerance)
            assert all(bool(shard.isfinite().all()) for shard in result[f"{way}/topk"])


def test_replicas_agree() -> None:
    first, *rest = run_ranks(GPUS, replicas, backend="nccl")
    for other in rest:
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))
