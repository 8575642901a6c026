"""The k largest elements of the sum, on every rank; what did not win stays with who sent it."""

import math
import re

import pytest
import torch

from gradwire.compressors.sparse.dgc import DGC
from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.contrib.strategies._sparse import PlacedValues, pack, unpack
from gradwire.contrib.strategies.oktopk import OkTopkStrategy
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from tests.contracts.thread_ranks import PLACES, N, exchange_in_threads
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import run_method

WORLD = 3
WEIGHTS = {"a.weight": slice(0, 1320), "b.weight": slice(1353, 2353), "c.weight": slice(2353, 5425)}


def top(x, k):
    return torch.where(x.abs() >= x.abs().topk(k).values[-1], x, 0.0)


def test_an_exact_threshold_finds_the_largest_of_the_sum_of_what_was_sent():
    code = OkTopk(ratio=0.02)
    results = run_ranks(WORLD, run_method, code, None, OkTopkStrategy(period=1), 1)
    for place in WEIGHTS.values():
        locals_ = [gradient(0, rank, numel(SHAPES))[place] for rank in range(WORLD)]
        k = code.count(len(locals_[0]))
        expected = top(sum(top(x, k) for x in locals_), k) / WORLD
        for result in results:
            torch.testing.assert_close(result["outputs"][0][place], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("period", [1, 2, 32])
def test_nothing_is_lost_and_all_ranks_agree(period):
    steps = 5
    results = run_ranks(WORLD, run_method, OkTopk(ratio=0.05), None, OkTopkStrategy(period=period), steps)
    for name, place in WEIGHTS.items():
        given = sum(gradient(step, rank, numel(SHAPES))[place] for step in range(steps) for rank in range(WORLD))
        kept = sum(result["kept"][-1][f"residual/{name}"] for result in results)
        out = sum(results[0]["outputs"][step][place] for step in range(steps))
        torch.testing.assert_close(WORLD * out + kept, given, rtol=0, atol=2e-5)
    for step in range(steps):
        assert all(torch.equal(result["outputs"][step], results[0]["outputs"][step]) for result in results)


def test_between_exact_thresholds_about_k_win():
    code = OkTopk(ratio=0.05)
    result = run_ranks(WORLD, run_method, code, None, OkTopkStrategy(period=32), 8)[0]
    place = WEIGHTS["c.weight"]
    counts = [int((output[place] != 0).sum()) for output in result["outputs"]]
    assert counts[0] == code.count(3072)
    assert all(0.3 < count / counts[0] < 4 for count in counts[1:])
    assert len(set(counts)) > 1


def rescaled(*scales):
    """After one gradient at these scales: how many won each tensor at last, and the kept thresholds."""
    ranks = exchange_in_threads(
        OkTopk(ratio=0.1),
        WORLD,
        len(scales),
        lambda step, rank: scales[step] * gaussian(N, seed=rank),
        memory="none",
        strategy=OkTopkStrategy(period=1000),
        force=True,
    )
    sessions = ranks[0].exchange.residuals.sessions
    won = {name: int(ranks[0].steps[len(scales) - 1].out[PLACES[name]].count_nonzero()) for name in sessions}
    return won, {name: float(kept["threshold"]) for name, kept in sessions.items()}


@pytest.mark.parametrize(("scale", "factor"), [(1.05, 1.0), (1.2, 1.012), (0.97, 1.0), (0.9, 1 / 1.012)])
def test_a_kept_threshold_rises_where_many_win_and_falls_where_few_do(scale, factor):
    exact_won, exact = rescaled(1.0)
    won, kept = rescaled(1.0, scale)
    assert len(exact) == 2
    for name, k in exact_won.items():
        side = 4 * won[name] > 5 * k, 3 * won[name] < 2 * k
        assert side == (factor > 1, factor < 1)
        assert kept[name] == pytest.approx(factor * exact[name], rel=1e-6)


def test_traffic_does_not_grow_with_the_ranks():
    """In 6 steps from empty residuals, the dense bias included; an all-gather of 6 ranks moves 5 payloads."""
    world, steps, code = 6, 6, OkTopk(ratio=0.05)
    results = run_ranks(world, run_method, code, None, OkTopkStrategy(), steps)
    payloads = sum(code.layout(shape).nbytes for name, shape in SHAPES if name in WEIGHTS)
    assert max(result["metrics"]["bytes_sent"] for result in results) < 0.95 * steps * (world - 1) * payloads


def test_a_bad_step_is_taken_back():
    for result in run_ranks(WORLD, run_method, OkTopk(ratio=0.05), None, "oktopk", 3, 1):
        assert bool(result["outputs"][1][WEIGHTS["a.weight"]].isnan().all())
        assert all(torch.equal(tensor, result["kept"][1][name]) for name, tensor in result["kept"][0].items())
        assert bool(result["outputs"][2].isfinite().all())


def test_the_velocity_of_dgc_takes_back_what_was_sent_in_vain():
    results = run_ranks(WORLD, run_method, DGC(ratio=0.02), None, OkTopkStrategy(period=1), 1)
    place = WEIGHTS["a.weight"]
    given = sum(gradient(0, rank, numel(SHAPES))[place] for rank in range(WORLD))
    kept = sum(result["kept"][0]["residual/a.weight"] for result in results)
    torch.testing.assert_close(WORLD * results[0]["outputs"][0][place] + kept, given, rtol=0, atol=1e-5)


def entries(index, values):
    return PlacedValues(torch.tensor(index, dtype=torch.int64), torch.tensor(values))


def test_a_message_keeps_large_indices():
    """Indices in a buffer of float32 are wrong from 2^24 on."""
    lists = [entries([2**24 + 1, 2**31 - 2], [1.5, -2.0]), entries([], []), entries([7], [0.25])]
    message = pack(torch.ones(1, dtype=torch.int32), lists)
    status, read = unpack(message, [(0, 2**31)] * 3)
    assert status.item() == 1
    for ours, theirs in zip(lists, read, strict=True):
        assert torch.equal(ours.places, theirs.places)
        assert torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m[:4], "is shorter than its head of 8"),
        (lambda m: m[:-4], "20 bytes cannot have lists of [2]"),
        (lambda m: torch.cat([m[:4], m[4:8].bitwise_not(), m[8:]]), "cannot have lists of [-3]"),
        (lambda m: torch.cat([m[:16], m[16:20] + 10, m[20:]]), "indices must lie in [0, 20)"),
    ],
)
def test_messages_that_cannot_be_are_refused(change, text):
    message = pack(torch.zeros(1, dtype=torch.int32), [entries([11, 12], [1.0, 2.0])])
    with pytest.raises(WireError, match=re.escape(text)):
        unpack(change(message), [(0, 20)])


def test_another_code_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match="which 'twobit' does not send: use compressor='oktopk'"):
        OkTopkStrategy().check(TwoBit())


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, True])
def test_bad_period(bad):
    with pytest.raises(ConfigError, match=re.escape(f"OkTopkStrategy.period must be an integer >= 1, got {bad!r}")):
        OkTopkStrategy(period=bad)
