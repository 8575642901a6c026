import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.sparse.adaptive_sparse import AdaptiveSparse
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.vocabulary import Key
from tests.cases import together


def payload(code, x, step=0):
    return code.layout(x.shape).views(code.compress(x, key=Key(step=step)))


def probabilities(code, x):
    s = float(payload(code, x)[1])
    return (x.double().abs() / s).clamp(max=1.0)


def closed_form(x, eps):
    """s by the definition: the smallest kk with |x_(kk+1)| sum_{i>kk} |x_(i)| <= eps |x|^2 + sum_{i>kk} x_(i)^2."""
    ordered = x.double().abs().sort(descending=True).values
    budget = eps * float(ordered.square().sum())
    for kk in range(len(ordered)):
        tail = ordered[kk:]
        if float(tail[0] * tail.sum()) <= budget + float(tail.square().sum()):
            return (budget + float(tail.square().sum())) / float(tail.sum())
    raise AssertionError


@together
@pytest.mark.parametrize("eps", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("kind", ["sorted", "heavy tail", "spike", "mixed scales"])
def test_the_closed_form_is_that_of_the_sorted_elements(kind, eps):
    x, code = SPECIAL[kind](500), AdaptiveSparse("closed", eps=eps)
    assert float(payload(code, x)[1]) == pytest.approx(closed_form(x, eps), rel=1e-6)


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_the_closed_form_spends_the_variance_it_was_given(eps):
    x, code = gaussian(2000) ** 3, AdaptiveSparse("closed", eps=eps)
    spent = float((x.double().square() / probabilities(code, x)).sum() / x.double().square().sum())
    assert spent == pytest.approx(1 + eps, rel=1e-6)


@together
@pytest.mark.parametrize("make", [gaussian, lambda n: gaussian(n) ** 3])
@pytest.mark.parametrize("ratio", [0.01, 0.1])
def test_greedy_meets_the_expected_number_in_two_iterations(make, ratio):
    x = make(20_000)
    assert float(probabilities(AdaptiveSparse(ratio=ratio), x).sum()) == pytest.approx(ratio * 20_000, rel=2e-2)
    code = AdaptiveSparse(ratio=ratio, iterations=20)
    assert float(probabilities(code, x).sum()) == pytest.approx(ratio * 20_000, rel=1e-5)


def test_without_iterations_elements_above_the_step_cost_share():
    x = gaussian(2000) ** 3
    sums = [float(probabilities(AdaptiveSparse(ratio=0.1, iterations=i), x).sum()) for i in (0, 1, 2)]
    assert sums[0] + 5 < sums[1] < sums[2] <= 200.001


def test_elements_are_kept_as_often_as_they_should_be():
    x = torch.tensor([4.0, 1.0, -0.5, 0.25, 0.0]).repeat(200)
    code = AdaptiveSparse(ratio=0.4, iterations=10)
    expected = probabilities(code, x)[:5]
    kept = torch.zeros(5, dtype=torch.float64)
    for step in range(50):
        out = code.decompress(code.compress(x, key=Key(step=step)), x.shape)
        kept += (out.view(200, 5) != 0).sum(0) / 200
        assert torch.equal(out[out != 0].sign(), x[out != 0].sign())
    assert expected[0] == 1
    assert expected[4] == 0
    torch.testing.assert_close(kept / 50, expected, rtol=0, atol=5 * 0.5 / math.sqrt(10_000))


def test_what_is_kept_by_chance_has_one_magnitude():
    x = gaussian(3000)
    used, step, (a, b) = payload(AdaptiveSparse(), x)[:3]
    out = AdaptiveSparse().decompress(AdaptiveSparse().compress(x), x.shape)
    assert int(used) == 6 * a + 2 * b + -(-b // 8)
    assert int((out.abs() == step).sum()) == b
    assert torch.equal(out[out.abs() > step], x[x.abs() > step])


@together
@pytest.mark.parametrize("above", [0, 300, 480, 484, 485, 486, 490, 1000])
def test_dense_or_not_does_not_depend_on_the_draw(above):
    """485 values and 515 signs could just fill 4000 bytes: the choice is made before anything is drawn."""
    x = torch.full((1000,), 1e-3)
    x[:above] = gaussian(above).sign() * 5.0
    code = AdaptiveSparse("closed", eps=1e-6)
    forms = {int(payload(code, x, step)[2][0]) == -1 for step in range(20)}
    s = float(payload(code, x)[1])
    most = 6 * int((x.abs() >= s).sum()) + 2 * int((x.abs() < s).sum()) + -(-int((x.abs() < s).sum()) // 8)
    assert forms == {most >= 4000}


@together
@pytest.mark.parametrize("mode", ["greedy", "closed"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives(mode, bad):
    x = gaussian(1000)
    x[77] = bad
    out = AdaptiveSparse(mode).decompress(AdaptiveSparse(mode).compress(x), x.shape)
    assert torch.equal(out[77:78].nan_to_num(7.0), x[77:78].nan_to_num(7.0))


def test_feedback_is_legal_where_the_variance_is_small():
    assert AdaptiveSparse().feedback == "unsafe"
    assert AdaptiveSparse("closed", eps=1.0).feedback == "unsafe"
    assert AdaptiveSparse("closed", eps=0.5).feedback == "optional"
    assert capabilities.delta(AdaptiveSparse("closed", eps=0.25), 10) == 0.75


@pytest.mark.parametrize("code", [AdaptiveSparse(), AdaptiveSparse("closed", eps=1e-6)], ids=lambda code: code.mode)
def test_indices_beyond_16_bits(code):
    x = torch.zeros(140_000)
    x[[3, 65_535, 65_536, 139_999]] = torch.tensor([100.0, -100.0, 100.0, -100.0])
    x[::1000] += 1e-3
    out = code.decompress(code.compress(x), x.shape)
    assert out[[3, 65_535, 65_536, 139_999]].tolist() == x[[3, 65_535, 65_536, 139_999]].tolist()


@together
@pytest.mark.parametrize(
    ("nbytes", "sizes", "text"),
    [
        (8, (1, 0), "cannot use 8 bytes for 1 and 0 entries"),
        (399, (-1, -1), "cannot use 399 bytes"),
        (400, (-1, 3), "-1 and 3 entries"),
        (-6, (-1, 0), "cannot use -6 bytes"),
        (6, (1, 0), "counts must be >= 0"),
        (3, (0, 1), "counts must be >= 0 and sum to 1, got [0]"),
        (402, (67, 0), "cannot use 402 bytes"),
    ],
)
def test_bytes_that_cannot_be_are_refused(nbytes, sizes, text):
    code = AdaptiveSparse()
    layout = code.layout((100,))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    views = layout.views(buffer)
    views[0].fill_(nbytes)
    views[2].copy_(torch.tensor(sizes))
    with pytest.raises(WireError, match=re.escape(text)):
        code.decompress(buffer, (100,))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mode": "best"}, "AdaptiveSparse.mode must be 'greedy' or 'closed', got 'best'"),
        ({"ratio": 0.0}, "AdaptiveSparse.ratio must be in (0, 1], got 0.0"),
        ({"ratio": 1.5}, "AdaptiveSparse.ratio"),
        ({"iterations": -1}, "AdaptiveSparse.iterations must be an integer >= 0, got -1"),
        ({"eps": 0.0}, "AdaptiveSparse.eps must be a finite number > 0"),
        ({"eps": math.inf}, "AdaptiveSparse.eps"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        AdaptiveSparse(**values)
