"""The simple door on real ranks: every strategy, memories of both kinds, and an aggregate of one's own."""

import pytest
import torch

from gradwire.memory.dgc import DGCMemory
from gradwire.memory.residual import Residual
from gradwire.testing.processes import run_ranks
from tests.cases import together
from tests.compressors.methods import (
    SHAPES,
    Drawn,
    Half,
    Linear8,
    Momentum,
    OwnMemory,
    Rude,
    TopHalf,
    Vote,
    exchange,
    gradient,
)

WORLD, STEPS = 3, 4
RUNS = [
    (TopHalf(), {"strategy": "allgather", "memory": "residual"}),
    (TopHalf(), {"strategy": "broadcast", "memory": "none"}),
    (TopHalf(), {"strategy": "two_phase", "memory": "residual"}),
    (Linear8(), {"strategy": "two_phase"}),
    (Vote(), {"strategy": "allgather"}),
    (Vote(), {"strategy": "two_phase"}),
    (Half(), {}),
    (Half(average=False), {"strategy": "allreduce"}),
    (Half(average=False), {"strategy": "allreduce", "memory": "residual"}),
    (Half(average=False), {"strategy": "allreduce", "memory": Residual(dtype="bfloat16")}),
    (Half(average=False), {"strategy": "allreduce", "memory": DGCMemory(momentum=0.0)}),
    (Half(average=False), {"strategy": "allgather", "memory": "residual"}),
    (Half(average=False), {"strategy": "two_phase", "memory": "residual"}),
    (Drawn(k=6), {"strategy": "allgather", "memory": "residual"}),
    (Momentum(), {"strategy": "allgather"}),
    (OwnMemory(), {"strategy": "allgather"}),
    (Rude(), {"strategy": "allreduce", "memory": "residual"}),
]


def expected(method, options):
    """The sum of the outputs of all steps and of the residuals; None where that is not the sum of the gradients."""
    if isinstance(method, Vote | Momentum | Linear8) or options.get("strategy") in ("two_phase", "broadcast"):
        return None
    total = sum(gradient(step, rank) for step in range(STEPS) for rank in range(WORLD))
    return total / WORLD if method.average else total


@together
@pytest.mark.parametrize(("method", "options"), RUNS, ids=lambda value: str(value).replace("'", ""))
def test_ranks_agree_and_nothing_is_lost(method, options):
    results = run_ranks(WORLD, exchange, method, STEPS, options)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result["outputs"], results[0]["outputs"], strict=True))
    want = expected(method, options)
    if want is not None:
        arrived = sum(results[0]["outputs"])
        for result in results:
            kept = result["residuals"] or {name: state["unsent"] for name, state in result["states"].items() if state}
            if kept:
                unsent = torch.cat([kept[name].flatten() for name, _ in SHAPES]).float()
                arrived = arrived + (unsent / WORLD if method.average else unsent)
        torch.testing.assert_close(arrived, want, rtol=1e-3, atol=4e-3)


def test_the_vote_is_the_vote():
    (result, *_) = run_ranks(WORLD, exchange, Vote(), 1, {"strategy": "two_phase"})
    votes = sum(torch.where(gradient(0, rank) >= 0, 1.0, -1.0) for rank in range(WORLD))
    assert torch.equal(result["outputs"][0], votes.sign())
