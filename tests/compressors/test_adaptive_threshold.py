import math
import re

import pytest
import torch

from gradwire.contrib.compressors.sparse.adaptive_threshold import AdaptiveThreshold
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from tests.cases import together


def decoded(code, x):
    return code.decompress(code.compress(x), x.shape)


def used(code, x):
    return int(code.layout(x.shape).views(code.compress(x))[0])


def test_each_sign_has_its_own_share_and_mean():
    x = torch.tensor([1.0, 9.0, -1.0, 3.0, 7.0, -2.0, 0.0])
    assert decoded(AdaptiveThreshold(0.5), x).tolist() == [0.0, 8.0, 0.0, 0.0, 8.0, -2.0, 0.0]


def test_a_joint_threshold_takes_the_largest_of_both():
    x = torch.tensor([1.0, 9.0, -1.0, 3.0, 6.0, -2.0])
    assert decoded(AdaptiveThreshold(0.5, joint=True), x).tolist() == [0.0, 6.0, 0.0, 6.0, 6.0, 0.0]


@pytest.mark.parametrize("joint", [False, True])
def test_it_is_a_projection(joint):
    """|C - x|^2 = |x|^2 - n+ mean+^2 - n- mean-^2."""
    x = gaussian(3000).double()
    out = decoded(AdaptiveThreshold(0.05, joint), x.float()).double()
    expected = x.square().sum() - out.square().sum()
    assert float((out - x).square().sum()) == pytest.approx(float(expected), rel=1e-6)
    assert len(out.unique()) == 3


@pytest.mark.parametrize("x", [gaussian(1000).abs(), -gaussian(1000).abs()])
def test_one_sign_alone_is_no_mean_of_nothing(x):
    out = decoded(AdaptiveThreshold(0.1), x)
    assert out.isfinite().all()
    assert int((out != 0).sum()) == 100
    assert torch.equal(out.sign(), x.sign() * (out != 0))


@pytest.mark.parametrize("large", [slice(0, 20_000), slice(80_000, 100_000)])
def test_thresholds_come_from_the_whole_tensor_not_from_where_it_begins(large):
    """A tensor whose first or last fifth is a hundred times larger: the share that is sent is that of all elements."""
    x = gaussian(100_000)
    x[large] *= 100
    sent = int((decoded(AdaptiveThreshold(0.01), x) != 0).sum())
    assert sent == pytest.approx(1000, rel=0.3)


def test_zeros_are_never_sent():
    x = torch.zeros(100_000)
    assert used(AdaptiveThreshold(), x) == 0
    x[[5, 70_000]] = torch.tensor([2.0, -3.0])
    assert torch.equal(decoded(AdaptiveThreshold(), x), x)


def test_a_constant_is_sent_whole_in_two_bits_an_element():
    x = torch.full((1001,), 0.3)
    assert torch.equal(decoded(AdaptiveThreshold(), x), x)
    assert used(AdaptiveThreshold(), x) == 251


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_a_sample_meets_the_share(ratio):
    x = gaussian(400_000)
    assert int((decoded(AdaptiveThreshold(ratio), x) != 0).sum()) == pytest.approx(400_000 * ratio, rel=0.4)


def test_a_sample_does_not_line_up_with_rows():
    """A sample with the stride of a matrix's rows would see the first column alone, which is large here."""
    x = gaussian(400_000).view(400, 1000)
    x[:, 0] *= 100
    assert int((decoded(AdaptiveThreshold(0.01), x) != 0).sum()) == pytest.approx(4000, rel=0.4)


@together
@pytest.mark.parametrize("k", [0, 1, 8, 116, 117, 118, 119, 500])
def test_the_smaller_form_is_chosen(k):
    x = torch.zeros(1000)
    x[:k] = gaussian(k).sign()
    code = AdaptiveThreshold(0.999)
    assert torch.equal(decoded(code, x), x)
    assert used(code, x) == min(2 * k + math.ceil(k / 8), 250)


def test_the_dense_form_crosses_pieces():
    x = gaussian(70_001).sign()
    assert torch.equal(decoded(AdaptiveThreshold(), x), x)


@pytest.mark.parametrize(("bad", "count"), [(math.nan, 1), (math.inf, 1), (-math.inf, 1)])
def test_what_is_not_finite_arrives(bad, count):
    x = gaussian(100_000)
    x[1234] = bad
    out = decoded(AdaptiveThreshold(), x)
    assert not out[1234].isfinite()
    assert int((~out.isfinite()).sum()) >= count


@together
@pytest.mark.parametrize(
    ("nbytes", "counts", "text"),
    [
        (26, 0, "must use 25 bytes"),
        (-1, 0, "must use 25 bytes"),
        (4, 0, "those of whole entries below that, got 4"),
        (5, 1, "sum to 2"),
        (5, 2, "must increase and stay below 100, got [0, 0]"),
    ],
)
def test_bytes_that_cannot_be_are_refused(nbytes, counts, text):
    code = AdaptiveThreshold()
    layout = code.layout((100,))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    views = layout.views(buffer)
    views[0].fill_(nbytes)
    views[2].fill_(counts)
    with pytest.raises(WireError, match=re.escape(text)):
        code.decompress(buffer, (100,))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ratio": 0.0}, "AdaptiveThreshold.ratio must be in (0, 1), got 0.0"),
        ({"ratio": 1.0}, "must be in (0, 1)"),
        ({"ratio": True}, "ratio"),
        ({"joint": 1}, "AdaptiveThreshold.joint must be True or False, got 1"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        AdaptiveThreshold(**values)


@pytest.mark.parametrize("joint", [False, True])
def test_a_ratio_below_one_element_sends_the_largest(joint):
    x = torch.tensor([1.0, -3.0, 2.0])
    assert decoded(AdaptiveThreshold(1e-9, joint), x).tolist() == ([0.0, -3.0, 0.0] if joint else [0.0, -3.0, 2.0])
