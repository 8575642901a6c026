import math
import re

import pytest
import torch
from hypothesis import given

from gradwire.compressors import capabilities
from gradwire.compressors.levels.natural import Natural
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together

NEAREST = Natural(rounding="nearest")


def decoded(code, x, step=0):
    return code.decompress(code.compress(x, key=Key(step=step)), x.shape)


def shares(value, draws=4000):
    """The number of times that each power comes out for one value, over the elements of a vector."""
    out = decoded(Natural(), torch.full((draws,), value))
    values, counts = out.unique(return_counts=True)
    return {float(v): int(c) / draws for v, c in zip(values, counts, strict=True)}


def test_a_payload_is_a_byte_an_element_and_one_a_block():
    assert Natural(block=64).layout((10, 13)).nbytes == 3 + 130


def test_the_worked_example():
    assert shares(1.5) == {1.0: pytest.approx(0.5, abs=0.03), 2.0: pytest.approx(0.5, abs=0.03)}
    assert shares(-2.5) == {-2.0: pytest.approx(0.75, abs=0.03), -4.0: pytest.approx(0.25, abs=0.03)}


@given(x=gradients(min_size=1))
def test_only_the_two_powers_around_an_element_come_out(x):
    out = decoded(Natural(block=16), x)
    _, exponent = torch.frexp(x.double())
    upper = torch.ldexp(torch.ones_like(x, dtype=torch.float64), exponent)
    exact = (out.abs() == upper) | (out.abs() == upper / 2)
    assert bool((exact & (out.sign() == x.sign()) | (x.abs() < 2.0**-120) | (out == 0) & small_in_block(x)).all())


def small_in_block(x):
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16).double()
    largest = blocks.abs().amax(1).repeat_interleave(16)[: len(x)]
    return x.abs() < largest * 2.0**-125


def test_powers_of_two_are_exact():
    x = torch.ldexp(torch.ones(200), torch.arange(200) - 120) * torch.tensor([1.0, -1.0]).repeat(100)
    for code in (Natural(block=16), NEAREST):
        out = decoded(code, x[120:])
        assert torch.equal(out, x[120:])


def test_the_variance_bound_is_attained_at_four_thirds():
    x = torch.full((200_000,), 4 / 3)
    lost = float((decoded(Natural(), x) - x).double().square().mean()) / (4 / 3) ** 2
    assert lost == pytest.approx(1 / 8, rel=0.02)
    assert capabilities.omega(Natural(), 5) == 1 / 8


def test_the_nearest_power_loses_at_most_a_third():
    x = torch.linspace(1, 2, 4001)[:-1]
    out = decoded(NEAREST, x)
    assert out.tolist() == [1.0 if value < 1.5 else 2.0 for value in x.tolist()]
    assert float(((out - x) / x).abs().amax()) == pytest.approx(1 / 3, abs=1e-3)
    assert capabilities.delta(NEAREST, 7) == 8 / 9


def test_what_is_declared_depends_on_the_rounding():
    assert (Natural().unbiased, Natural().random) == (True, True)
    assert (NEAREST.unbiased, NEAREST.random) == (False, False)


def test_feedback_keeps_a_small_memory():
    """Measured 0.3 in units of the gradients: omega is below 1."""
    code, n = Natural(), 4096
    residual = torch.zeros(n)
    payload = code.layout((n,)).views(torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8))
    for step in range(50):
        code.encode_feedback(gaussian(n, seed=step), residual, payload, {}, Key(step=step))
    assert float(residual.square().mean().sqrt()) == pytest.approx(0.31, abs=0.03)


def test_noise_of_different_ranks_is_independent():
    code, x, ranks = Natural(), gaussian(4096), 16
    alone = float((decoded(code, x) - x).square().mean())
    outs = [code.decompress(code.compress(x, key=Key(rank=rank)), x.shape) for rank in range(ranks)]
    assert float((torch.stack(outs).mean(0) - x).square().mean()) == pytest.approx(alone / ranks, rel=0.15)


def test_subnormals_stay_small():
    """GRACE's CUDA code makes +131072 of a negative subnormal."""
    x = torch.tensor([-1e-40, 1e-40, -1.0, 1e-45])
    out = decoded(Natural(block=16), x)
    assert bool((out[[0, 1, 3]].abs() <= 2.0**-126).all())
    alone = decoded(NEAREST, torch.tensor([-1e-38, 2.0**-127, 1e-45]))
    assert alone.tolist() == [-(2.0**-126), 2.0**-126, 0.0]


def test_large_elements_are_not_clipped():
    """GRACE sends everything above 2**18 as 2**18."""
    assert decoded(NEAREST, torch.tensor([1e30, -1e6])).tolist() == [2.0**100, -(2.0**20)]
    assert decoded(NEAREST, torch.tensor([3.4e38, -3.4e38])).tolist() == [2.0**127, -(2.0**127)]


@together
@pytest.mark.parametrize("code", [Natural(block=16), Natural(rounding="nearest", block=16)], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_become_a_power(code, bad):
    """GRACE's codec clips an infinity to 2**18 and wraps a NaN to 0."""
    x = torch.ones(48)
    x[20] = bad
    assert decoded(code, x).isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@together
@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"Natural.block must be a multiple of 16 in [16, 65536], got {bad!r}")
    ):
        Natural(block=bad)


@together
@pytest.mark.parametrize("bad", ["up", "", None, True])
def test_bad_rounding(bad):
    with pytest.raises(ConfigError, match=re.escape(f"Natural.rounding must be 'random' or 'nearest', got {bad!r}")):
        Natural(rounding=bad)
