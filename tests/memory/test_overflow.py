"""A code of 16 bits that overflows: the step does not count, nothing kept becomes infinite, and training goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.sparse.topk import TopK
from gradwire.engine.exchange import Exchange
from gradwire.memory.dgc import DGCMemory
from gradwire.memory.residual import Residual
from gradwire.testing.processes import run_ranks

SIZE = 4096
PARAMS = [("weight", (64, 64))]
CODES = {"topk": lambda: TopK(ratio=0.1, values="float16"), "fp16": FP16}
MEMORIES = {
    "leaky": lambda: Residual(beta=0.9),
    "amplified": lambda: Residual(gamma=1.5),
    "bfloat16": lambda: Residual(dtype="bfloat16"),
    "dgc": DGCMemory,
}


def steps(exchange: Exchange, rank: int = 0, large: float = 70_000.0) -> list[dict[str, Any]]:
    """Three steps, in the second of which one element is larger than any of 16 bits."""
    told = []
    for step in range(3):
        flat = torch.randn(SIZE, generator=torch.Generator().manual_seed(10 * step + rank))
        if step == 1:
            flat[7] = large
        before = {name: each.clone() for name, each in exchange.residuals.worker.get("residual", {}).items()}
        exchange.begin_step()
        exchange.run(flat, PARAMS)
        exchange.end_step()
        kept = exchange.residuals.worker["residual"]
        told.append(
            {
                "finite": bool(flat.isfinite().all()),
                "bad": exchange.metrics()["nonfinite_steps"],
                "kept": all(bool(each.isfinite().all()) for each in kept.values()),
                "same": all(torch.equal(each, before[name]) for name, each in kept.items() if name in before),
            }
        )
    return told


def check(told: list[dict[str, Any]]) -> None:
    assert [each["finite"] for each in told] == [True, False, True]
    assert [each["bad"] for each in told] == [0, 1, 1]
    assert all(each["kept"] for each in told)
    assert told[1]["same"]
    assert not told[2]["same"]


# A cast leaves too little for a residual of bfloat16.
PAIRS = [(code, memory) for code in CODES for memory in MEMORIES if (code, memory) != ("fp16", "bfloat16")]


@pytest.mark.parametrize(("code", "memory"), PAIRS)
def test_an_overflow_is_a_step_that_does_not_count(code: str, memory: str) -> None:
    check(steps(Exchange(CODES[code](), memory=MEMORIES[memory](), strategy="allgather")))


def in_lanes(rank: int) -> list[dict[str, Any]]:
    group = dist.new_group(backend="gloo")
    made = Exchange(TopK(ratio=0.1, values="float16"), strategy="hierarchical:ranks_per_host=2", group=group)
    return steps(made, rank)


def test_lanes_of_a_host_undo_a_step_together() -> None:
    """The element lies in one lane; what the other had sent would be lost, because all are handed NaN."""
    for told in run_ranks(4, in_lanes):
        check(told)
