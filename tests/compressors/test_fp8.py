import math
import re

import pytest
import torch

from gradwire.compressors.casts.fp8 import FP8
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from tests.cases import together

FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}
formats = pytest.mark.parametrize("form", FORMATS)


def decoded(code, x):
    return code.decompress(code.compress(x), x.shape)


@formats
def test_a_payload_is_a_byte_an_element_and_a_scale_a_block(form):
    assert FP8(format=form, block=64).layout((10, 13)).nbytes == 3 * 4 + 130


@pytest.mark.parametrize(("form", "code"), [("e4m3", 0x7E), ("e5m2", 0x7B)])
def test_the_largest_magnitude_becomes_the_largest_float8(form, code):
    payload = FP8(format=form, block=16).compress(torch.tensor([3.7, -3.7, 0.0]))
    assert payload[4:].tolist() == [code, code | 0x80, 0]


@formats
def test_codes_are_those_of_the_cast_inside_the_range(form):
    """Scaled by a power of two, so that dividing by the largest magnitude is exact."""
    dtype, largest = FORMATS[form]
    x = (gaussian(5000).pow(3) * largest / 64).clamp(-largest, largest)
    x[0] = largest
    codes = FP8(format=form, block=8192).compress(x)[4:]
    y = x * (1 / torch.tensor(largest)) * largest
    assert torch.equal(codes, y.to(dtype).view(torch.uint8))


@formats
def test_every_float8_survives(form):
    dtype, largest = FORMATS[form]
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    values = values[values.isfinite()]
    assert values.abs().amax() == largest
    assert torch.equal(decoded(FP8(format=form, block=256), values), values)


@formats
def test_every_byte_decodes_as_the_format_says(form):
    dtype, largest = FORMATS[form]
    codes, out = torch.arange(256, dtype=torch.uint8), torch.zeros(256)
    FP8(format=form, block=256).add_decoded((torch.tensor([largest]), codes), out)
    expected = codes.view(dtype).float()
    assert torch.equal(out.nan_to_num(7e7), expected.nan_to_num(7e7))


@together
@pytest.mark.parametrize(("form", "error"), [("e4m3", 0.026), ("e5m2", 0.053)])
@pytest.mark.parametrize("block", [32, 2048])
def test_errors_on_normal_gradients_hardly_depend_on_the_block(form, error, block):
    x = gaussian(65536)
    assert float((decoded(FP8(format=form, block=block), x) - x).norm() / x.norm()) == pytest.approx(error, rel=0.1)


@formats
def test_the_relative_error_of_an_element_is_bounded(form):
    x = torch.logspace(0, -4 if form == "e4m3" else -9, 4000)
    error = ((decoded(FP8(format=form, block=65536), x) - x) / x).abs()
    assert float(error.amax()) <= {"e4m3": 2.0**-4, "e5m2": 2.0**-3}[form]


@together
@formats
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_become_a_number(form, bad):
    """A cast of torch makes 448 of an infinity."""
    x = torch.ones(48)
    x[20] = bad
    assert decoded(FP8(format=form, block=16), x).isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@together
@formats
@pytest.mark.parametrize("magnitude", [2.0**-120, 2.0**-112, 1e-20, 1e20, 3.4e38])
def test_scales_at_the_edges(form, magnitude):
    x = torch.tensor([1.0, -0.5, 0.25, 0.0]) * magnitude
    torch.testing.assert_close(decoded(FP8(format=form, block=16), x), x, rtol=1e-3, atol=0)


@together
@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    with pytest.raises(ConfigError, match=re.escape(f"FP8.block must be a multiple of 16 in [16, 65536], got {bad!r}")):
        FP8(block=bad)


@together
@pytest.mark.parametrize("bad", ["e4m3fn", "e3m4", "", None, 8])
def test_bad_format(bad):
    with pytest.raises(ConfigError, match=re.escape(f"FP8.format must be 'e4m3' or 'e5m2', got {bad!r}")):
        FP8(format=bad)
