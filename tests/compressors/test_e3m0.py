import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given

from gradwire.contrib.compressors.levels.e3m0 import E3M0
from gradwire.contrib.compressors.levels.nuqsgd import NUQSGD
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error
from tests.wire.levels import levels

VALUES = torch.tensor([0.0, *(2.0**-e for e in range(6, -1, -1))], dtype=torch.float64)


def parse(payload, config, shape):
    """Read a payload as its row in docs/methods/levels.md says, without gradwire or torch: tests/wire compares it."""
    n = math.prod(shape)
    block = config["block"] or n
    blocks = -(-n // block)
    norms = np.repeat(np.frombuffer(payload[: 4 * blocks], "<f4"), block)[:n]
    codes = levels(payload[4 * blocks :], 4, n)
    return np.sign(codes) * norms * np.float32(2.0) ** (np.abs(codes) - 7)


def by_hand(x, block):
    """The nearest value of each element's block, in float64; halfway the larger one."""
    out = torch.empty_like(x)
    for start in range(0, x.numel(), block):
        part = x[start : start + block].double()
        norm = part.abs().amax()
        share = part.abs() / norm if norm >= 2.0**-120 else torch.zeros_like(part)
        distances = (share.unsqueeze(1) - VALUES).abs()
        nearest = 7 - distances.flip(1).argmin(1)
        out[start : start + block] = (VALUES[nearest] * norm * part.sign()).float()
    return out


@pytest.mark.parametrize("block", [16, 48, 256, 4096, 65536, None])
@pytest.mark.parametrize("n", [1, 15, 257, 20_001])
def test_every_element_becomes_the_nearest_value_of_its_block(block, n):
    x = gaussian(n, seed=n) ** 3
    torch.testing.assert_close(decoded(E3M0(block=block), x), by_hand(x, block or n), rtol=1e-6, atol=0.0)


@given(x=gradients(min_size=1, max_size=64))
def test_any_gradient_is_rounded_by_the_same_rule(x):
    if x.double().abs().amax() >= 2.0**-100:
        torch.testing.assert_close(decoded(E3M0(block=16), x), by_hand(x, 16), rtol=1e-5, atol=1e-44)


@together
@pytest.mark.parametrize(("block", "norms"), [(16, 9), (64, 3), (256, 1), (None, 1)])
def test_a_payload_is_a_norm_a_block_and_half_a_byte_an_element(block, norms):
    assert E3M0(block=block).layout((10, 13)).nbytes == 4 * norms + 65


def test_the_bytes_are_a_norm_and_two_codes_a_byte_the_first_in_the_low_bits():
    payload = E3M0(block=16).compress(torch.tensor([8.0, -8.0, 0.125, -0.24, 0.0624]))
    norms, codes = E3M0(block=16).layout((5,)).views(payload)
    assert norms.tolist() == [8.0]
    # 7 and -7, 1 and -2, and 0: it is nearer to 0 than to 0.125.
    assert bytes(codes.tolist()).hex() == "97e100"


def test_a_payload_of_nuqsgd_decodes_alike():
    x = torch.tensor([4.0, -2.0, 1.0, 0.0, -0.0625])
    assert torch.equal(E3M0(block=16).compress(x), NUQSGD(bits=4, block=16, norm="linf").compress(x))


@together
@pytest.mark.parametrize(("block", "small"), [(16, False), (2048, False), (4096, True), (None, True)])
def test_the_constant_is_what_the_worst_block_loses(block, small):
    n = block or 2**16
    x = torch.full((n,), 0.999 * 2.0**-7 if small else 0.7499)
    x[0] = 1.0
    code = E3M0(block=block)
    lost = float((decoded(code, x) - x).double().square().sum() / x.double().square().sum())
    assert 0.85 * (1 - code.delta(n)) < lost <= 1 - code.delta(n)


def test_it_loses_half_of_what_random_rounding_to_the_same_values_loses():
    x = gaussian(2**14)
    lost = relative_error(E3M0(), x, 1)
    assert lost == pytest.approx(0.5 * relative_error(NUQSGD(bits=4, block=256, norm="linf"), x, 8), rel=0.1)


def test_feedback_keeps_a_small_memory():
    assert memory_after(E3M0(), 50, 4096) < 0.3


@together
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_block_nan(bad):
    x = torch.ones(48)
    x[20] = bad
    assert decoded(E3M0(block=16), x).isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@together
@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512"])
def test_bad_block(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"E3M0.block must be a multiple of 16 in [16, 65536] or None, got {bad!r}")
    ):
        E3M0(block=bad)


def test_no_element_is_further_off_than_the_docstring_says():
    x = torch.cat([torch.linspace(0.0, 1.0, 20001), torch.tensor([2.0**-e for e in range(9)])])
    apart = (decoded(E3M0(block=None), x) - x).abs()
    large = x >= 0.75 * 2.0**-6
    assert (apart[large] <= x[large] / 3 * (1 + 1e-6)).all()
    assert (apart[~large] <= 2.0**-7 * (1 + 1e-6)).all()
    assert (decoded(E3M0(block=None), x)[x < 2.0**-7] == 0).all()
    # Neither bound is met with room to spare.
    assert (apart[large] / x[large]).max() > 0.33
    assert apart[~large].max() > 0.99 * 2.0**-7
