import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.sparse.variance import Variance
from gradwire.errors import WireError
from gradwire.testing.inputs import gaussian
from tests.cases import together


def decoded(x):
    return Variance().decompress(Variance().compress(x), x.shape)


def used(x):
    return int(Variance().layout(x.shape).views(Variance().compress(x))[0])


def test_elements_are_rounded_to_the_nearest_power_of_two():
    x = torch.tensor([1.0, 1.49, 1.5, -2.9, -3.0, 0.75, 0.7])
    assert decoded(x).tolist() == [1.0, 1.0, 2.0, -2.0, -4.0, 1.0, 0.5]


def test_seven_powers_below_the_largest_are_sent_and_no_more():
    x = torch.cat([torch.tensor([1.0]), -(2.0 ** -torch.arange(1.0, 12.0))])
    assert decoded(x)[:8].tolist() == x[:8].tolist()
    assert decoded(x)[8:].eq(0).all()


def test_depth_counts_from_the_rounded_maximum():
    """1.6 counts as 2, so 2^-6 is the last power, and 0.012 = 1.536 * 2^-7 rounds up to it."""
    assert decoded(torch.tensor([1.6, 0.012, 0.011])).tolist() == [2.0, 2**-6, 0.0]


def test_an_entry_is_a_word_of_code_and_index():
    x = torch.zeros(1000)
    x[[3, 900]] = torch.tensor([-4.0, 1.0])
    _, head, stream = Variance().layout(x.shape).views(Variance().compress(x))
    assert head.tolist() == [127 + 2, 2]
    assert [word & 0xFFFFFFFF for word in stream[:8].view(torch.int32).tolist()] == [8 << 28 | 3, 2 << 28 | 900]


@together
@pytest.mark.parametrize("k", [0, 1, 7, 35, 36, 37, 500, 1000])
def test_the_smaller_form_is_chosen(k):
    x = torch.zeros(1000)
    x[:k] = gaussian(k).sign()
    assert torch.equal(decoded(x), x)
    assert used(x) == min(4 * k, 125 + (k + 1) // 2)


def test_a_bitmap_crosses_pieces():
    x = gaussian(70_001).sign() * (gaussian(70_001, seed=1) > 0)
    assert torch.equal(decoded(x), x)


def test_the_largest_float_does_not_become_infinite():
    x = torch.tensor([torch.finfo(torch.float32).max, 2.0**126])
    assert decoded(x).tolist() == [2.0**127, 2.0**126]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_as_nan(bad):
    x = gaussian(100)
    x[17] = bad
    assert decoded(x).isnan().nonzero().tolist() == [[17]]


@pytest.mark.parametrize("x", [torch.zeros(50), torch.full((50,), 1e-41), torch.full((50,), -0.0)])
def test_nothing_is_sent_of_nothing(x):
    assert used(x) == 0
    assert decoded(x).tolist() == [0.0] * 50


def test_the_bound_is_not_far_from_what_is_possible():
    x = torch.full((2**14,), 2.0**-8)
    x[0] = 1.0
    lost = float((decoded(x) - x).square().sum() / x.square().sum())
    assert lost < 1 - capabilities.delta(Variance(), len(x)) < 4 * lost


@together
@pytest.mark.parametrize(
    ("head", "nbytes", "words", "text"),
    [
        ([256, 1], 4, [5], "exponent of 256"),
        ([-1, 1], 4, [5], "exponent of -1"),
        ([120, -1], 0, [], "-1 entries"),
        ([120, 1001], 4, [], "1001 entries"),
        ([120, 1], 3, [5], "3 bytes for 1000"),
        ([120, 2], 8, [5, 5], "increasing indices below 1000, got [5, 5]"),
        ([120, 1], 4, [1000], "got [1000]"),
        ([120, 500], 375, [3], "500 marks for as many entries, got 2"),
    ],
)
def test_bytes_that_cannot_be_are_refused(head, nbytes, words, text):
    layout = Variance().layout((1000,))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    views = layout.views(buffer)
    views[0].fill_(nbytes)
    views[1].copy_(torch.tensor(head))
    views[2][: 4 * len(words)] = torch.tensor(words, dtype=torch.int32).view(torch.uint8)
    with pytest.raises(WireError, match=re.escape(text)):
        Variance().decompress(buffer, (1000,))
