import math
import re

import pytest
import torch

from gradwire.contrib.compressors.sparse._measure import measure
from gradwire.contrib.compressors.sparse._tails import STAGE_RATIO, fit, sum_of_logs, threshold
from gradwire.contrib.compressors.sparse.sidco import SIDCo
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.cases import together


def sent(code, x, steps=1):
    """The number of elements that are sent at the last of some steps."""
    layout, state = code.layout(x.shape), code.init_state(x.shape, Key())
    payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
    for _ in range(steps):
        code.encode(x, payload, state, Key())
    out = torch.zeros_like(x)
    code.add_decoded(payload, out)
    assert torch.equal(out[out != 0], x[out != 0])
    return int((out != 0).sum()), int(state["stages"])


def heavy(n):
    return gaussian(n) ** 3


def laplace(n):
    u = torch.rand(n, generator=torch.Generator().manual_seed(3)) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def test_an_exponential_tail_is_met_in_closed_form():
    x = torch.tensor([1.0, 2.0, 3.0, 6.0])
    of = measure(x)
    assert (of.size, of.total, of.largest) == (4, 12.0, 6.0)
    assert fit(of, 0.1, "exp") == pytest.approx(3 * math.log(10))


def test_a_gamma_fit_follows_its_formula():
    x = torch.tensor([1.0, 2.0, 3.0, 6.0])
    s = math.log(3) - math.log(36) / 4
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    assert fit(measure(x), 0.01, "gamma", sum_of_logs(x)) == pytest.approx(
        3 / shape * (math.log(100) - math.lgamma(shape)), rel=1e-6
    )


def test_a_pareto_fit_follows_its_formula():
    of = measure(torch.tensor([1.0, 2.0, 3.0, 10.0]))
    mean, variance = 4.0, 114 / 4 - 16
    shape, scale = (1 - mean**2 / variance) / 2, mean * (mean**2 / variance + 1) / 2
    assert fit(of, 0.01, "gp") == pytest.approx(scale / shape * (0.01**-shape - 1))


@pytest.mark.parametrize("distribution", ["gamma", "gp"])
def test_without_spread_a_fit_is_exponential(distribution):
    x = torch.full((8,), 2.0)
    assert fit(measure(x), 0.1, distribution, sum_of_logs(x)) == pytest.approx(2 * math.log(10), rel=1e-6)


def test_zeros_have_no_logarithm_and_do_not_count():
    x = torch.tensor([0.0, 1.0, 0.0, math.e])
    assert measure(x).size == 2
    assert sum_of_logs(x) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("n", "stages"), [(29, 1), (30, 2), (31, 2)])
def test_a_second_stage_is_fitted_to_thirty_magnitudes_or_more(n, stages):
    x = torch.linspace(0.1, 3.0, n)
    eta, share = 0.0, 0.2
    if stages == 2:
        eta = float(x.double().mean()) * math.log(1 / STAGE_RATIO)
        x, share = x[x >= eta], share / STAGE_RATIO
    eta += (float(x.double().mean()) - eta) * math.log(1 / share)
    assert 2.0 < eta < 3.0
    assert threshold(torch.linspace(0.1, 3.0, n), 0.2, "exp", 5) == pytest.approx(eta, rel=1e-6)


@together
@pytest.mark.parametrize("make", [gaussian, laplace, heavy])
@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("distribution", ["exp", "gamma", "gp"])
def test_with_all_its_stages_the_target_is_met(make, ratio, distribution):
    n = 200_000
    assert 0.5 < sent(SIDCo(ratio, distribution), make(n))[0] / (ratio * n) < 1.6


def test_one_stage_alone_would_miss_it():
    x, code = gaussian(200_000), SIDCo(0.001, period=100)
    layout = code.layout(x.shape)
    payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
    state = code.init_state(x.shape, Key())
    state["stages"].fill_(1)
    code.encode(x, payload, state, Key())
    assert int(payload[0]) // 6 < 20


@pytest.mark.parametrize("make", [gaussian, heavy])
def test_stages_adapt_towards_the_target_and_stay_in_range(make):
    n, code = 100_000, SIDCo(0.01, period=2)
    for steps in (1, 5, 40):
        count, stages = sent(code, make(n), steps)
        assert 1 <= stages <= code.most_stages == 4
        assert 0.4 < count / (0.01 * n) < 1.6


def test_a_change_of_stages_that_made_it_worse_is_reversed():
    code = SIDCo(0.01, period=1)
    state = code.init_state((1000,), Key())
    code._learn(state, 20, 1000)
    assert int(state["stages"]) == 3
    code._learn(state, 40, 1000)
    assert int(state["stages"]) == 4
    code._learn(state, 10, 1000)
    assert int(state["stages"]) == 4


def test_stages_go_up_where_too_few_are_sent_whatever_the_last_change():
    code = SIDCo(0.01, period=1)
    state = code.init_state((1000,), Key())
    for sent_now, stages in ((30, 3), (5, 4), (4, 3), (11, 3)):
        code._learn(state, sent_now, 1000)
        assert int(state["stages"]) == stages


def test_a_constant_tensor_is_sent_whole_and_zeros_cost_nothing():
    x = torch.full((5000,), -0.25)
    assert torch.equal(SIDCo().decompress(SIDCo().compress(x), x.shape), x)
    layout = SIDCo().layout((5000,))
    assert int(layout.views(SIDCo().compress(torch.zeros(5000)))[0]) == 0


def test_a_sparse_gradient_is_fitted_on_what_is_there():
    """An embedding's gradient has 2 % that are not zero: a target of 1 % is half of those, not all and not none."""
    x = torch.zeros(100_000)
    x[::50] = gaussian(2000)
    assert 0.5 < sent(SIDCo(0.01), x)[0] / 1000 < 1.6
    assert sent(SIDCo(0.05), x)[0] == 2000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives(bad):
    x = gaussian(3000)
    x[1234] = bad
    assert torch.equal(SIDCo().decompress(SIDCo().compress(x), x.shape).nan_to_num(7.0), x.nan_to_num(7.0))


def test_the_dense_form_takes_over_before_entries_are_larger():
    x = torch.cat([torch.ones(65), torch.full((35,), 1e-3)])
    layout = SIDCo(0.6).layout(x.shape)
    assert int(layout.views(SIDCo(0.6).compress(x))[0]) == 6 * 65
    assert int(layout.views(SIDCo(0.6).compress(torch.ones(100)))[0]) == 400


@together
@pytest.mark.parametrize(
    ("used", "counts", "text"),
    [
        (401, None, "must use 400 bytes"),
        (-6, None, "must use 400 bytes"),
        (13, None, "multiple of 6"),
        (12, 3, "sum to 2"),
        (12, -2, "sum to 2"),
        (12, 2, "must increase and stay below 100"),
    ],
)
def test_bytes_that_cannot_be_are_refused(used, counts, text):
    code = SIDCo(0.1)
    layout = code.layout((100,))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    views = layout.views(buffer)
    views[0].fill_(used)
    views[1].fill_(counts or 0)
    with pytest.raises(WireError, match=re.escape(text)):
        code.decompress(buffer, (100,))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"ratio": 0.0}, "SIDCo.ratio must be in (0, 1), got 0.0"),
        ({"ratio": 1.0}, "SIDCo.ratio"),
        ({"ratio": math.nan}, "SIDCo.ratio"),
        ({"distribution": "normal"}, "SIDCo.distribution must be 'exp', 'gamma'"),
        ({"period": 0}, "SIDCo.period must be an integer >= 1, got 0"),
        ({"period": 1.5}, "SIDCo.period"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        SIDCo(**values)
