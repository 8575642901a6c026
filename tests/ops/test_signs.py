"""Signs: with nothing, with a momentum, and what becomes of their mean."""

import pytest
import torch

from gradwire.compressors.signs.ops import sign_add_decoded, sign_bytes, sign_encode, sign_encode_feedback, sign_vote
from gradwire.contrib.compressors.signs.ops import signum_encode
from gradwire.errors import ConfigError
from gradwire.kernels import momentum_update
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, dispatched, gradient, random_bytes, sweep


@sweep
def test_encode(n, threads, offset):
    codes = {"codes": ((sign_bytes(n),), torch.uint8)}
    check_against_reference(Case(sign_encode, {"x": gradient(n, 1, finite=False)}, codes), threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)}
    outputs["codes"] = ((sign_bytes(n),), torch.uint8)
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(sign_encode_feedback, {}, outputs), threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_add_decoded(n, threads, offset, ranks):
    codes, out = random_bytes((ranks, sign_bytes(n)), 4), gradient(n, 5, finite=False)
    case = Case(sign_add_decoded, {"codes": codes}, {"out": out}, {"scale": 1 / 3}, pitch=3)
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("tie", [1.0, 0.0])
def test_vote(n, threads, offset, tie):
    case = Case(sign_vote, {}, {"mean": gradient(n, 6, finite=False)}, {"tie": tie})
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_momentum(n, threads, offset, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite), "momentum": gradient(n, 3)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(momentum_update, {}, outputs, {"beta": 0.9}), threads, offset)
    outputs["codes"] = ((sign_bytes(n),), torch.uint8)
    check_against_reference(Case(signum_encode, {}, outputs, {"beta": 0.9}), threads, offset)


@together
@pytest.mark.parametrize("target", TARGETS)
def test_the_first_element_is_the_lowest_bit_and_zero_is_positive(target):
    codes = torch.full((2,), 0xA5, dtype=torch.uint8)
    with dispatched(target):
        sign_encode(torch.tensor([1.0, -1.0, 0.0, -0.0, float("nan"), -1e-45, float("-inf"), 5.0, 1.0]), codes)
    assert codes.tolist() == [0b10001101, 0b1]


@together
@pytest.mark.parametrize("ranks", [2, 3, 6, 7, 10, 48, 1000, 2047, 2048])
def test_a_tie_is_one_and_a_majority_of_one_is_not(ranks):
    for ahead in range(-2, 3):
        votes = torch.ones(ranks)
        votes[: (ranks - ahead) // 2] = -1
        margin, mean = int(votes.sum()), torch.zeros(2)
        for order, vote in enumerate((votes, votes[torch.randperm(ranks, generator=torch.Generator().manual_seed(1))])):
            codes = vote.gt(0).to(torch.uint8).unsqueeze(1)
            sign_add_decoded(codes, mean[order : order + 1], 1 / ranks)
        sign_vote(mean, 0.0)
        assert mean.tolist() == [float(margin > 0) - float(margin < 0)] * 2


@together
@pytest.mark.parametrize("target", TARGETS)
def test_a_vote_that_is_not_a_number_stays_one(target):
    mean = torch.tensor([float("nan"), 0.0, float("-inf")])
    with dispatched(target):
        sign_vote(mean, 1.0)
    assert mean[0].isnan()
    assert mean[1:].tolist() == [1.0, -1.0]


def test_bad_numbers_are_named():
    with pytest.raises(ConfigError, match=r"^sign_vote.tie must be -1, 0 or 1, got 0.5$"):
        sign_vote(torch.zeros(1), 0.5)
    with pytest.raises(ConfigError, match=r"^momentum_update.beta must be in \[0, 1\) in float32, got 0.99999999$"):
        momentum_update(torch.zeros(1), torch.zeros(1), 0.99999999)
    with pytest.raises(ConfigError, match=r"^signum_encode.beta must be in \[0, 1\) in float32, got -0.1$"):
        signum_encode(torch.zeros(1), torch.zeros(1), torch.empty(1, dtype=torch.uint8), -0.1)
