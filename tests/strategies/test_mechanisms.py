"""Votes, memories that replace the mean, and reductions other than the mean, between real ranks."""

import pytest
import torch

from gradwire.compressors.sparse.topk import TopK
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.engine.exchange import Exchange
from gradwire.engine.plan import default_strategy
from gradwire.errors import ConfigError
from gradwire.memory.base import default_memory
from gradwire.testing import contract
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import Alternating, NonZero, SharedScale, Tracks, Vote, run_method

WORLD = 3
FIRST = slice(0, 40 * 33)  # the first parameter


def gradients(step):
    return [gradient(step, rank, numel(SHAPES))[FIRST] for rank in range(WORLD)]


@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
def test_a_vote_is_the_sign_of_the_sum_of_signs(strategy):
    results = run_ranks(WORLD, run_method, Vote(), "none", strategy, 1)
    expected = torch.stack(gradients(0)).sign().sum(0).sign()
    for result in results:
        assert torch.equal(result["outputs"][0][FIRST], expected)


def test_a_memory_may_hand_out_its_own_mean():
    results = run_ranks(WORLD, run_method, TopK(ratio=0.1), Tracks(), "allgather", 3)
    for result in results:
        locals_ = torch.stack([other["kept"][2]["local/a.weight"] for other in results])
        torch.testing.assert_close(result["outputs"][2][FIRST], locals_.mean(0), rtol=1e-5, atol=1e-6)
        assert torch.equal(result["outputs"][2][FIRST], result["kept"][2]["mean/a.weight"])


def test_such_a_memory_keeps_its_tensors_in_a_bad_step():
    for result in run_ranks(WORLD, run_method, TopK(ratio=0.1), Tracks(), "allgather", 3, 1):
        assert bool(result["outputs"][1][FIRST].isnan().all())
        assert result["kept"][0].keys() == result["kept"][1].keys()
        assert all(torch.equal(tensor, result["kept"][1][name]) for name, tensor in result["kept"][0].items())


def test_a_maximum_and_sums_of_integers():
    results = run_ranks(WORLD, run_method, SharedScale(), "residual", None, 2)
    xs = gradients(0)
    scale = max(float(x.abs().amax()) for x in xs)
    for result in results:
        error = (result["outputs"][0][FIRST] - torch.stack(xs).mean(0)).abs().amax()
        assert float(error) <= 0.51 * scale / 1000
        assert torch.equal(result["outputs"][1], results[0]["outputs"][1])


def test_a_summed_payload_may_have_several_fields():
    code = RandomK(ratio=0.1)
    assert len(code.layout((40, 33)).fields) > 1
    mean = torch.stack(gradients(0)).mean(0)
    for result in run_ranks(WORLD, run_method, code, "residual", None, 1):
        output = result["outputs"][0][FIRST]
        sent = output != 0
        assert sent.sum() == code.slots(40 * 33)
        torch.testing.assert_close(output[sent], mean[sent])


def test_an_infinity_passes_a_maximum():
    for result in run_ranks(WORLD, run_method, SharedScale(), "residual", None, 3, 1):
        assert bool(result["outputs"][1][FIRST].isnan().all())
        assert all(torch.equal(tensor, result["kept"][1][name]) for name, tensor in result["kept"][0].items())
        assert bool(result["outputs"][2].isfinite().all())


def test_a_round_may_name_its_field():
    results = run_ranks(WORLD, run_method, Alternating(), "none", None, 2)
    half = 40 * 33 // 2
    for step, sent in ((0, slice(half, 2 * half)), (1, slice(0, half))):
        # The exchange counts steps from 1, so the odd field goes first.
        expected = torch.zeros(2 * half)
        expected[sent] = torch.stack(gradients(step)).mean(0)[sent]
        for result in results:
            torch.testing.assert_close(result["outputs"][step][FIRST], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", [NonZero(least=0.5), SharedScale(), Alternating()], ids=lambda method: method.name)
def test_they_keep_the_contract(method):
    skipped = (contract.check_config, contract.check_bad_bytes, contract.ranks.check_rounds)
    for check in contract.CHECKS:
        if check not in skipped:
            check(method, gaussian(100))


def test_a_round_of_any_reduction_can_be_driven_by_threads():
    contract.ranks.check_rounds(SharedScale(), gaussian(50))
    contract.ranks.check_rounds(Alternating(), gaussian(50))


def test_a_method_of_one_round_is_still_reduced():
    assert default_strategy(Alternating(), 8) == "allreduce"
    with pytest.raises(ConfigError, match="'alternating' is averaged in 1 rounds: use strategy='allreduce'"):
        Exchange(Alternating(), strategy="allgather")


class WithMemory(TopK):
    memory = "residual"
    feedback = "optional"


def test_a_method_names_its_memory():
    assert default_memory(WithMemory()) == "residual"
    with pytest.raises(ConfigError, match="makes another method of 'topk', which is defined with memory 'residual'"):
        Exchange(WithMemory(), memory="none")
    assert Exchange(WithMemory(), memory="none", force=True).methods.memory_for(WithMemory()).name == "none"
