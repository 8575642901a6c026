import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.cases import together


def views(code, buffer, n):
    return code.layout((n,)).views(buffer)


def chosen(code, n, key=None):
    return code.decompress(code.compress(torch.ones(n), key=key), (n,)).nonzero().view(-1)


@given(n=st.integers(1, 3000), ratio=st.floats(0.001, 1), run=st.sampled_from([1, 3, 16]), step=st.integers(0, 9))
def test_one_run_in_each_stratum_and_none_twice(n, ratio, run, step):
    code, units = RandomK(ratio, run=run), -(-n // run)
    where, k = chosen(code, n, Key(step=step)), code.draws(n)
    found = torch.unique(where // run)
    edges = torch.arange(k + 1) * units // k
    assert len(found) == k
    assert bool(((found >= edges[:-1]) & (found < edges[1:])).all())
    assert len(where) == sum(min(run, n - int(unit) * run) for unit in found)


def test_half_of_the_elements_are_half_of_the_elements():
    """Drawn with replacement there would be a fifth fewer."""
    assert len(chosen(RandomK(0.5), 10_000)) == 5000


def test_every_element_has_the_same_chance():
    hits = sum(RandomK(0.25).compress(torch.eye(8)[0], key=Key(step=s))[:8].view(torch.float32) for s in range(2000))
    counts = torch.zeros(10)
    for step in range(4000):
        counts[chosen(RandomK(0.2), 10, Key(step=step))] += 1
    assert bool(((counts - 800).abs() < 5 * math.sqrt(4000 * 0.2 * 0.8)).all())
    assert abs(float(hits[0]) - 500) < 5 * math.sqrt(2000 * 0.25 * 0.75)


def test_raw_loses_what_it_does_not_send():
    x, code = gaussian(1000), RandomK(0.1)
    errors = []
    for step in range(400):
        out = code.decompress(code.compress(x, key=Key(step=step)), (1000,))
        assert torch.equal(out[out != 0], x[out != 0])
        errors.append(float((out - x).square().sum()))
    expected = 0.9 * float(x.square().sum())
    assert abs(sum(errors) / 400 - expected) < 0.02 * expected
    assert capabilities.delta(code, 1000) == pytest.approx(0.1)


def test_scaled_multiplies_by_the_size_of_the_stratum():
    code = RandomK(0.3, scaled=True)
    out = code.decompress(code.compress(torch.ones(10)), (10,))
    assert sorted(out[out != 0].tolist()) == [3.0, 3.0, 4.0]
    assert capabilities.omega(code, 10) == 3.0
    assert (code.unbiased, code.feedback) == (True, "unsafe")
    assert (RandomK().unbiased, RandomK().feedback) == (False, "required")


@pytest.mark.parametrize(("scaled", "low", "high"), [(True, 1e6, math.inf), (False, 3, 15)])
def test_a_residual_of_the_scaled_form_diverges_and_that_of_the_raw_one_does_not(scaled, low, high):
    code, n = RandomK(0.01, scaled=scaled), 4096
    residual, payload = torch.zeros(n), views(code, torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8), n)
    for step in range(60):
        code.encode_feedback(gaussian(n, seed=step), residual, payload, {}, Key(step=step))
    assert low < float(residual.square().mean().sqrt()) < high


def test_ranks_choose_alike_and_their_sum_is_decoded():
    code, n, ranks = RandomK(0.1, run=4), 1003, 300
    xs = [gaussian(n, seed=rank) for rank in range(ranks)]
    payloads = [code.compress(x, key=Key(seed=3, step=7, rank=rank)).view(torch.float32) for rank, x in enumerate(xs)]
    total = torch.stack(payloads).sum(0)
    expected = sum(code.decompress(p.view(torch.uint8), (n,)) for p in payloads)
    assert torch.allclose(code.decompress(total.view(torch.uint8), (n,)), expected, atol=1e-4)


def test_the_choice_depends_on_the_parameter_and_the_step_and_on_nothing_else():
    before = torch.get_rng_state()
    choices = [chosen(RandomK(0.1), 500, Key(tensor=t, step=s)).tolist() for t in (1, 2) for s in (0, 1)]
    assert len({tuple(each) for each in choices}) == 4
    assert chosen(RandomK(0.1), 500, Key(tensor=2, step=1)).tolist() == choices[3]
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_sent_leaves_the_residual():
    code, n = RandomK(0.2), 200
    grad, residual, total = gaussian(n), torch.zeros(n), torch.zeros(n)
    payload = views(code, torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8), n)
    for step in range(50):
        code.encode_feedback(grad, residual, payload, {}, Key(step=step))
        code.add_decoded(payload, total)
    assert torch.allclose(total + residual, 50 * grad, rtol=1e-4, atol=1e-4)


@together
@pytest.mark.parametrize("header", [[0, 0, 0, 0, 0], [math.nan] * 5, [math.inf, 1, 1, 1, 1], [1, -5, 1e9, 300, 0]])
def test_a_header_that_makes_no_sense_is_survived(header):
    code = RandomK(0.5)
    payload = torch.cat([torch.ones(8), torch.tensor(header, dtype=torch.float32)])
    assert code.decompress(payload.view(torch.uint8), (16,)).sum() == 8


@together
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ratio": 0}, "RandomK.ratio must be in (0, 1], got 0"),
        ({"ratio": 1.5}, "RandomK.ratio must be in (0, 1], got 1.5"),
        ({"scaled": 1}, "RandomK.scaled must be True or False, got 1"),
        ({"run": 0}, "RandomK.run must be an integer in [1, 4096], got 0"),
        ({"run": 2.0}, "RandomK.run must be an integer in [1, 4096], got 2.0"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        RandomK(**params)
