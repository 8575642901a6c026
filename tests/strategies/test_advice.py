"""A value on which the ranks keep agreeing: the mean of their wishes, one step later, in a message that is sent
anyway."""

import pytest
import torch

from gradwire.testing.processes import run_ranks
from tests.strategies.jobs import SHAPES, gradient, numel
from tests.strategies.methods import Wishes, run_method

WORLD = 3
FIRST = slice(0, 40 * 33)


def wish(step):
    return torch.stack([gradient(step, rank, numel(SHAPES))[FIRST].abs().amax() for rank in range(WORLD)]).mean()


@pytest.mark.parametrize("strategy", ["allgather", "broadcast"])
def test_the_mean_of_the_wishes_is_agreed_on_a_step_later(strategy):
    for result in run_ranks(WORLD, run_method, Wishes(), None, strategy, 4):
        agreed = [float(output[0]) for output in result["outputs"]]
        assert agreed[0] != agreed[0]
        assert agreed[1] == 0.0
        assert agreed[2:] == pytest.approx([float(wish(0)), float(wish(1))], rel=1e-6)


def test_it_costs_no_message_of_its_own():
    (first, *_) = run_ranks(WORLD, run_method, Wishes(), None, "allgather", 1)
    message, dense = 8 + 3 * 8, 2 * (WORLD - 1) * 4 * (33 + 3) // WORLD
    assert first["metrics"]["bytes_sent"] == (WORLD - 1) * message + dense


def test_a_bad_step_takes_wish_and_agreement_back():
    clean = run_ranks(WORLD, run_method, Wishes(), None, "allgather", 3)
    hurt = run_ranks(WORLD, run_method, Wishes(), None, "allgather", 4, 1)
    for before, after in zip(clean, hurt, strict=True):
        assert float(after["outputs"][2][0]) == float(before["outputs"][1][0])
        assert float(after["outputs"][3][0]) == pytest.approx(float(wish(0)), rel=1e-6)
