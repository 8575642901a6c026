"""Thresholds that follow the gradient, between real ranks: one number for all, through every strategy."""

import math

import pytest
import torch

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.sparse.threshold import Threshold
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import align
from tests.strategies.auto_jobs import agree, own_gradient
from tests.strategies.jobs import SHAPES, numel

STEPS = 20
CARRIED = [
    (TwoBit("auto", target=0.2), "allgather"),
    (TwoBit("auto", target=0.2), "broadcast"),
    (TwoBit("auto", target=0.2), "two_phase"),
    (TwoBit("auto", "adaptive", 0.1), "allgather"),
    (Strom("auto", target=0.1), "allgather"),
    (Strom("auto", target=0.1), "broadcast"),
    (Threshold("auto", target=0.1), "allgather"),
]
IDS = [f"{code.name}-{strategy}" for code, strategy in CARRIED]
COMPRESSED = [name for name, shape in SHAPES if torch.Size(shape).numel() >= 64]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    """The results of all ranks, for each of ``CARRIED``."""
    by_rank = run_ranks(request.param, agree, CARRIED, STEPS)
    return list(zip(*by_rank, strict=True))


@pytest.mark.parametrize("which", range(len(CARRIED)), ids=IDS)
def test_all_ranks_have_the_same_threshold_from_the_third_step_on(ranks, which):
    results = ranks[which]
    for step in range(STEPS):
        thresholds = [result["thresholds"][step] for result in results]
        assert set(thresholds[0]) == set(COMPRESSED)
        for name in COMPRESSED:
            values = {each[name] for each in thresholds}
            assert len(values) == 1 or all(map(math.isnan, values))
            assert step == 0 or 0 < thresholds[0][name] < math.inf


def test_all_ranks_send_the_threshold_that_was_agreed_on(ranks):
    """The mean is then a whole number of its W-th parts."""
    results, world = ranks[0], len(ranks[0])
    for step in range(2, STEPS):
        t = results[0]["thresholds"][step - 1]["a.weight"]
        parts = results[0]["outputs"][step][: 40 * 33] * (world / t)
        assert float(parts.abs().max()) >= 1 - 1e-5
        torch.testing.assert_close(parts, parts.round(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("which", range(len(CARRIED)), ids=IDS)
def test_all_ranks_end_every_step_with_the_same_bits_and_nothing_is_lost(ranks, which):
    results, world = ranks[which], len(ranks[which])
    for outputs in zip(*(result["outputs"] for result in results), strict=True):
        assert all(torch.equal(outputs[0], other) for other in outputs)
    put = sum(own_gradient(step, rank).double() for step in range(STEPS) for rank in range(world)) / world
    arrived, lo = sum(output.double() for output in results[0]["outputs"]), 0
    for name, shape in SHAPES:
        hi = lo + torch.Size(shape).numel()
        for result in results:
            if name in result["residuals"][-1]:
                arrived[lo:hi] += result["residuals"][-1][name].double() / world
            for start, view in result["owned"].get(name, []):
                arrived[lo + start : lo + start + view.numel()] += view.double()
        lo = hi
    torch.testing.assert_close(arrived, put, rtol=0, atol=1e-6)


@pytest.mark.parametrize("which", range(len(CARRIED)), ids=IDS)
def test_a_bad_step_of_one_rank_leaves_no_trace_on_any(ranks, which):
    for result in ranks[which]:
        assert bool(result["bad"][: 40 * 33].isnan().all())
        assert result["trace"] == []
        assert result["metrics"]["nonfinite_steps"] == 1


@pytest.mark.parametrize("which", range(len(CARRIED)), ids=IDS)
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(ranks, which):
    for result in ranks[which]:
        rest = result["outputs"][STEPS // 2 + 1 :]
        assert len(rest) == len(result["resumed"]) > 8
        assert all(torch.equal(a, b) for a, b in zip(rest, result["resumed"], strict=True))


@pytest.mark.parametrize("which", range(len(CARRIED)), ids=IDS)
def test_the_mean_of_the_ranks_has_at_most_the_shares_of_all(ranks, which):
    """No flood, also in the step in which rank 1 becomes a hundred times larger."""
    code, world = CARRIED[which][0], len(ranks[which])
    shares = [float((output[: 40 * 33] != 0).float().mean()) for output in ranks[which][0]["outputs"]]
    assert max(shares) < 1.5 * code.target * world


@pytest.mark.parametrize("name", ["twobit", "strom"])
def test_the_wishes_cost_two_floats_a_tensor_and_no_message(ranks, name):
    """The dense part and two floats for each tensor are sent besides the payloads, and nothing else."""
    which = next(i for i, (code, strategy) in enumerate(CARRIED) if (code.name, strategy) == (name, "allgather"))
    world, sent = len(ranks[which]), ranks[which][0]["metrics"]["bytes_sent"]
    if name == "twobit":
        payload = sum(-(-CARRIED[which][0].layout(shape).nbytes // 8) * 8 for n, shape in SHAPES if n in COMPRESSED)
        dense = 2 * (world - 1) * 4 * (33 + 2 * len(COMPRESSED)) // world
        # Between two ranks the dense part is in the message, whose length is a multiple of 8.
        assert sent == (STEPS + 1) * ((world - 1) * (8 + payload) + (align(dense) if world == 2 else dense))
    assert sent < (STEPS + 1) * 2 * (world - 1) * 4 * numel(SHAPES) / 4
