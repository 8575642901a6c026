import math

import pytest
import torch
from hypothesis import given

from gradwire.compressors.casts.dynamic8 import Dynamic8
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together


def decoded(x):
    return Dynamic8().decompress(Dynamic8().compress(x), x.shape)


def values():
    """The map, read through the decoder: the payload of scale 1 and every code."""
    payload = torch.tensor([1.0]), torch.arange(256, dtype=torch.uint8)
    out = torch.zeros(256)
    Dynamic8().add_decoded(payload, out)
    return out


def test_a_payload_is_a_byte_an_element_and_one_scale():
    assert Dynamic8().layout((10, 13)).nbytes == 134
    assert Dynamic8().layout((0,)).nbytes == 0


def test_the_map_is_sorted_with_one_zero_and_no_minus_one():
    table = values()
    assert bool((table.diff() > 0).all())
    assert table[127] == 0
    assert table[255] == 1
    assert table[0].item() == pytest.approx(-0.99296875)
    assert torch.equal(-table[:127].flip(0), table[128:255])


def test_each_decade_has_equal_steps():
    table = values().double()
    for d in range(7):
        decade = table[127 + 2**d : 127 + 2 ** (d + 1)] * 10.0 ** (6 - d)
        middles = 0.1 + 0.9 * (torch.arange(2**d, dtype=torch.float64) + 0.5) / 2**d
        torch.testing.assert_close(decade, middles, rtol=3e-7, atol=0)


def test_the_map_is_that_of_bitsandbytes():
    """Their ``create_dynamic_map`` of version 0.50, as the integers of its float32, summed with two weights."""
    words = values().view(torch.int32).long()
    assert int(words.sum()) == CHECKSUM
    assert int((words * torch.arange(256)).sum()) == WEIGHTED


CHECKSUM, WEIGHTED = -10154226044, 16301525595004


@given(x=gradients(min_size=1))
def test_every_code_is_the_nearest(x):
    scale = x.abs().amax()
    out = decoded(x).double()
    if not 1e-30 < float(scale) < 1e30:
        return
    candidates = values().double() * scale.double()
    nearest = (candidates[None] - x[:, None].double()).abs().amin(1)
    assert bool(((out - x).abs() <= nearest + 1e-6 * x.abs().double() + 1e-12 * scale.double()).all())


@together
@pytest.mark.parametrize("kind", SPECIAL)
def test_no_element_is_off_by_more_than_the_bound(kind):
    x = SPECIAL[kind](1000)
    assert float((decoded(x) - x).abs().amax()) <= 0.00704 * float(x.abs().amax()) + 2.0**-120


def test_the_largest_element_is_not_lost():
    """GRACE reads the table as edges: the largest element falls outside and is sent as 0."""
    assert decoded(torch.tensor([3.0, -0.5, 0.0]))[0] == 3.0
    assert decoded(torch.tensor([-3.0, 0.5]))[0].item() == pytest.approx(-3 * 0.99296875)


def test_nothing_shrinks_on_average():
    """GRACE decodes to the lower edge, which costs 2 % of the mean and 2.3 times the error."""
    x = gaussian(100_000)
    out = decoded(x)
    assert float((out * x).sum() / x.square().sum()) == pytest.approx(1.0, abs=5e-4)
    assert float((out - x).norm() / x.norm()) == pytest.approx(0.0154, rel=0.08)


def test_seven_decades_survive():
    x = 10.0 ** -torch.arange(7.0)
    assert bool((decoded(x) > 0).all())
    assert decoded(torch.tensor([1.0, 2.7e-7])).tolist() == [1.0, 0.0]


def test_nan_reaches_everyone_and_is_reported():
    x = torch.tensor([1.0, math.nan, 2.0])
    assert bool(decoded(x).isnan().all())
    status = torch.zeros(1, dtype=torch.int32)
    payload = torch.empty(1), torch.empty(3, dtype=torch.uint8)
    Dynamic8().encode_feedback(x, torch.zeros(3), payload, {}, Key(), status)
    assert status.item() == 1
