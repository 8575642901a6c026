import math
import re

import pytest
import torch
from hypothesis import given

from gradwire.compressors import capabilities
from gradwire.compressors.casts.blockwise8 import Blockwise8
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from tests.cases import together

KINDS = ("linear", "dynamic")
BOUND = {"linear": 0.5 / 127, "dynamic": 0.9 / 128}


def decoded(code, x):
    return code.decompress(code.compress(x), x.shape)


def relative_error(code):
    x = gaussian(65536)
    return float((decoded(code, x) - x).norm() / x.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_is_a_byte_an_element_and_a_scale_a_block(kind):
    assert Blockwise8(kind=kind, block=64).layout((10, 13)).nbytes == 3 * 4 + 130


@pytest.mark.parametrize("kind", KINDS)
@given(x=gradients(min_size=1))
def test_no_element_is_off_by_more_than_the_bound_of_its_block(kind, x):
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16).double()
    largest = blocks.abs().amax(1).repeat_interleave(16)[: len(x)]
    error = (decoded(Blockwise8(kind=kind, block=16), x) - x).abs().double()
    assert bool((error <= BOUND[kind] * largest * (1 + 1e-5) + 2.0**-120).all())


@together
@pytest.mark.parametrize(
    ("kind", "block", "error"),
    [
        ("linear", 64, 0.0060),
        ("linear", 256, 0.0070),
        ("linear", 2048, 0.0083),
        ("dynamic", 64, 0.0096),
        ("dynamic", 256, 0.0109),
        ("dynamic", 2048, 0.0125),
    ],
)
def test_errors_on_normal_gradients(kind, block, error):
    assert relative_error(Blockwise8(kind=kind, block=block)) == pytest.approx(error, rel=0.03)


def test_linear_codes_are_integers_to_nearest_even():
    x = torch.tensor([127.0, 1.5, 2.5, -2.5, -127.0, 0.49])
    assert decoded(Blockwise8(block=16), x).tolist() == [127.0, 2.0, 2.0, -2.0, -127.0, 0.0]


def test_the_largest_of_a_block_is_exact_in_linear_and_has_no_negative_in_dynamic():
    x = torch.tensor([0.7, -0.7])
    assert torch.equal(decoded(Blockwise8(block=16), x), x)
    assert decoded(Blockwise8(kind="dynamic", block=16), x).tolist() == pytest.approx([0.7, -0.7 * 0.99296875])


def test_the_linear_bound_on_what_is_lost_is_nearly_attained():
    """One large element and the others at half a step, which round to zero: all of them are lost."""
    code, x = Blockwise8(block=4096), torch.full((4096,), 0.5 / 127 * (1 - 1e-4))
    x[0] = 1.0
    lost = float((decoded(code, x) - x).double().square().sum() / x.double().square().sum())
    assert (1 - capabilities.delta(code, 4096)) * 0.99 <= lost <= 1 - capabilities.delta(code, 4096)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_reaches_everyone_in_its_block_only(kind):
    x = torch.ones(48)
    x[20] = math.inf
    out = decoded(Blockwise8(kind=kind, block=16), x)
    assert out.isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_too_small_for_its_inverse_is_zero(kind):
    x = torch.cat([torch.full((16,), 2.0**-121), torch.full((16,), 2.0**-120)])
    assert decoded(Blockwise8(kind=kind, block=16), x).tolist() == [0.0] * 16 + [2.0**-120] * 16


@together
@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"Blockwise8.block must be a multiple of 16 in [16, 65536], got {bad!r}")
    ):
        Blockwise8(block=bad)


@together
@pytest.mark.parametrize("bad", ["e4m3", "", None, 8])
def test_bad_kind(bad):
    with pytest.raises(ConfigError, match=re.escape(f"Blockwise8.kind must be 'linear' or 'dynamic', got {bad!r}")):
        Blockwise8(kind=bad)
