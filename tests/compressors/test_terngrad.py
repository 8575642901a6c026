import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import SPECIAL, gaussian
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error


def test_two_bits_an_element_and_one_scale():
    assert TernGrad().layout((3, 7)).nbytes == 4 + math.ceil(21 / 4)


def test_elements_of_the_full_scale_are_certain():
    assert decoded(TernGrad(), torch.tensor([0.25, -0.25, 0.25, 0.0])).tolist() == [0.25, -0.25, 0.25, 0.0]


def test_negative_elements_are_as_likely_as_positive_ones():
    # The paper's formula lacks the magnitude, and would never send half of the elements.
    x = torch.cat([torch.ones(1), torch.full((8000,), -0.5)])
    out = decoded(TernGrad(clip=0), x)[1:]
    assert set(out.tolist()) == {0.0, -1.0}
    assert float(out.mean()) == pytest.approx(-0.5, abs=0.03)


@pytest.mark.parametrize("x", [torch.tensor([0.3]), torch.full((4097,), 0.3), torch.full((9000,), -1e-6)], ids=len)
def test_a_deviation_of_zero_does_not_clip_everything_away(x):
    assert torch.equal(decoded(TernGrad(), x), x)


def test_the_scale_is_the_clip_on_large_gradients_and_the_largest_element_on_small_ones():
    x = gaussian(50_000)
    scale = decoded(TernGrad(clip=2.5), x).amax()
    assert float(scale) == pytest.approx(2.5 * float(x.double().std(correction=0)), rel=1e-5)
    uniform = torch.linspace(-1, 1, 999)
    assert float(decoded(TernGrad(clip=2.5), uniform).amax()) == 1.0


@pytest.mark.parametrize("offset", [100.0, -1e4])
def test_the_deviation_is_exact_far_from_zero(offset):
    # In float32 the mean of the squares less the square of the mean would be noise here.
    x = gaussian(20_000) + offset
    scale = decoded(TernGrad(clip=1.0), x).abs().amax()
    assert float(scale) == pytest.approx(float(x.double().std(correction=0)), rel=1e-3)


def test_the_worst_case_is_attained_without_clipping():
    n = 400
    code, x = TernGrad(clip=0), SPECIAL["spike"](n)
    assert capabilities.omega(code, n) == (math.sqrt(n) - 1) / 2
    assert relative_error(code, x, 600) == pytest.approx(capabilities.omega(code, n), rel=0.05)


def test_the_variance_is_the_closed_formula():
    x = gaussian(2000)
    expected = (x.abs().amax() * x.abs().sum() - x.square().sum()) / x.square().sum()
    assert relative_error(TernGrad(clip=0), x, 100) == pytest.approx(float(expected), rel=0.03)


def test_clipped_normal_gradients_have_as_much_noise_as_signal():
    assert relative_error(TernGrad(), gaussian(50_000), 10) == pytest.approx(1.0, rel=0.05)


def test_a_residual_settles_far_above_the_gradient():
    assert TernGrad().feedback == "unsafe"
    assert 10 < memory_after(TernGrad(), 50, 4096) < 30


@pytest.mark.parametrize("power", [-100, 100])
def test_a_square_that_float32_cannot_hold_clips_like_any_other(power):
    x = torch.tensor([3.0, -3.0, 3.0])
    ordinary = decoded(TernGrad(clip=0.1), x)
    assert float(ordinary.abs().max()) < 0.3
    assert torch.equal(decoded(TernGrad(clip=0.1), x * 2.0**power), ordinary * 2.0**power)


@together
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 79, 80, 81, 5 * 8192, 5 * 8192 + 3, 100_001])
def test_five_to_a_byte_say_the_same(n):
    x, plain, packed = gaussian(n), TernGrad(), TernGrad(packing="trits")
    assert packed.layout((n,)).nbytes == min(n, 1) * 4 + -(-n // 5)
    assert torch.equal(decoded(packed, x), decoded(plain, x))


def test_five_to_a_byte_are_digits_of_base_3():
    code = TernGrad(clip=0, packing="trits")
    assert code.compress(torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0, 1.0]))[4:].tolist() == [1 + 6 + 0 + 27 + 162, 1]


def test_a_byte_that_is_not_five_digits_is_refused():
    code, x = TernGrad(packing="trits"), gaussian(50)
    buffer = code.compress(x)
    buffer[-1] = 243
    with pytest.raises(WireError, match="must be at most 242, got 243"):
        code.decompress(buffer, x.shape)


@together
@pytest.mark.parametrize("bad", ["base3", "", None, True])
def test_bad_packing(bad):
    with pytest.raises(ConfigError, match=re.escape(f"TernGrad.packing must be 'bits' or 'trits', got {bad!r}")):
        TernGrad(packing=bad)


@together
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True, "2.5", None])
def test_bad_clip(bad):
    with pytest.raises(ConfigError, match=re.escape(f"TernGrad.clip must be a finite number >= 0, got {bad!r}")):
        TernGrad(clip=bad)
