import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.signs.signsgd import SignSGD
from gradwire.engine.exchange import Exchange
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from gradwire.vocabulary import Key
from tests.cases import together
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import run_method

WHOLE = [part for part in range(len(SHAPES)) if torch.Size(SHAPES[part][1]).numel() >= 64]


SMALL = [1e-45, -1e-45, 0.0, -0.0, 2.0**-126, -(2.0**-126), math.inf, -math.inf, 3.0, -3.0]


def vote(code: SignSGD, *votes: list[float]) -> list[float]:
    """The gradient that the optimizer gets where each rank has these gradients."""
    payloads = torch.stack([code.compress(torch.tensor(each)) for each in votes])
    mean = torch.zeros(len(votes[0]))
    code.add_decoded_many((payloads,), mean, 1 / len(votes))
    capabilities.settle(code, mean)
    return mean.tolist()


def decoded(code: SignSGD, x: list[float]) -> list[float]:
    return code.decompress(code.compress(torch.tensor(x)), (len(x),)).tolist()


def test_zero_is_positive_or_has_a_code_of_its_own():
    assert decoded(SignSGD(), SMALL) == [1, -1, 1, 1, 1, -1, 1, -1, 1, -1]
    assert decoded(SignSGD(ties="zero"), SMALL) == [0, 0, 0, 0, 1, -1, 1, -1, 1, -1]


def _flushed(_rank: int) -> list[float]:
    torch.set_flush_denormal(True)
    return decoded(SignSGD(ties="zero"), SMALL)


def test_a_processor_that_flushes_small_numbers_tells_zero_from_others_too():
    """The flag is the process's, so the process is one of its own."""
    assert run_ranks(1, _flushed) == [[0, 0, 0, 0, 1, -1, 1, -1, 1, -1]]


def test_eight_elements_are_one_byte_the_first_in_the_lowest_bit():
    assert SignSGD().compress(torch.tensor([1.0, -1, -1, 1, -1, -1, -1, 1, 1])).tolist() == [0b10001001, 1]
    assert [SignSGD().layout((n,)).nbytes for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert [SignSGD(ties="zero").layout((n,)).nbytes for n in (0, 1, 16, 17)] == [0, 4, 4, 8]


def test_the_majority_decides_not_the_sum():
    assert vote(SignSGD(), [100.0, -1.0], [-1.0, 2.0], [-1.0, 2.0]) == [-1, 1]


def test_even_votes_count_as_positive_or_as_zero():
    assert vote(SignSGD(), [1.0, -1.0, 0.0], [-1.0, -1.0, 0.0]) == [1, -1, 1]
    assert vote(SignSGD(ties="zero"), [1.0, -1.0, 0.0], [-1.0, -1.0, 0.0]) == [0, -1, 0]


@together
@pytest.mark.parametrize("ranks", [4, 6, 10, 14])
def test_a_tie_survives_the_rounding_of_one_over_w(ranks):
    for order in (1, -1):
        votes = [[1.0]] * (ranks // 2) + [[-1.0]] * (ranks // 2)
        assert vote(SignSGD(ties="zero"), *votes[::order]) == [0]


@pytest.mark.parametrize("ties", ["positive", "zero"])
def test_what_a_vote_leaves_is_what_the_code_can_say(ties):
    code = SignSGD(ties=ties)
    mean = torch.tensor([1.0, -1.0, 0.0, 1 / 3, -1 / 3])
    capabilities.settle(code, mean)
    assert decoded(code, mean.tolist()) == mean.tolist()


@together
@pytest.mark.parametrize("strategy", ["allgather", "two_phase"])
@pytest.mark.parametrize("ties", ["positive", "zero"])
def test_every_rank_gets_the_vote(strategy, ties):
    signs = torch.stack([gradient(0, rank, numel(SHAPES)) for rank in range(2)]).sign().sum(0)
    expected = signs.sign() if ties == "zero" else signs.ge(0) * 2.0 - 1
    for result in run_ranks(2, run_method, SignSGD(ties), None, strategy, 1):
        outputs = result["outputs"][0].split([torch.Size(shape).numel() for _, shape in SHAPES])
        wanted = expected.split([torch.Size(shape).numel() for _, shape in SHAPES])
        assert all(torch.equal(outputs[part], wanted[part]) for part in WHOLE)


def test_feedback_fills_the_residual_with_steps_and_is_refused():
    residual, code, kept = torch.zeros(100), SignSGD(), []
    payload = (torch.empty(13, dtype=torch.uint8),)
    for step in range(50):
        code.encode_feedback(1e-3 * gaussian(100, seed=step), residual, payload, {}, Key())
        kept.append(float(residual.abs().mean()))
    assert max(kept[-2:]) > 900 * 1e-3
    with pytest.raises(ConfigError, match="memory 'residual' would grow without bound"):
        Exchange(code, memory="residual")


@together
@pytest.mark.parametrize("bad", ["negative", "", 0, None, True])
def test_bad_ties(bad):
    with pytest.raises(ConfigError, match=re.escape(f"SignSGD.ties must be 'positive' or 'zero', got {bad!r}")):
        SignSGD(ties=bad)
