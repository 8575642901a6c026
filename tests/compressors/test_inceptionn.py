import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.contrib.compressors.casts.inceptionn import Inceptionn
from gradwire.errors import ConfigError, WireError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from tests.cases import together


def encoded(x, bound=10):
    """The form, and the bytes in use behind it."""
    code = Inceptionn(bound=bound)
    buffer = code.compress(x)
    used, stream = code.layout(x.shape).views(buffer)
    stream = stream[: int(used)].tolist()
    return stream[0], stream[1:]


def decoded(x, bound=10):
    code = Inceptionn(bound=bound)
    return code.decompress(code.compress(x), x.shape)


@given(x=gradients(min_size=1), bound=st.integers(1, 15))
def test_every_element_keeps_the_bound(x, bound):
    assert bool(((decoded(x, bound) - x).abs() < 2.0**-bound).all())


def test_one_element_of_each_class():
    x = torch.tensor([2.0**-10 - 2.0**-30, 2.0**-10, -(2.0**-3) + 2.0**-12, 2.0**-3, -0.75, 1.0, -3.5, 0.0])
    form, body = encoded(x)
    assert form == 0
    assert body[:2] == [0 | 1 << 2 | 1 << 4 | 2 << 6, 2 | 3 << 2 | 3 << 4 | 0 << 6]
    assert body[2:4] == [1, 0x80 | 127]
    assert body[4:8] == [0x00, 0x10, 0x00, 0xE0]
    assert bytes(body[8:]) == bytes.fromhex("0000803f000060c0")


def test_small_elements_are_not_enlarged():
    """GRACE's marker bit makes 2**-7 of everything from 2**-10 to 2**-6."""
    x = torch.logspace(-10, -6, 200, base=2.0)
    assert float((decoded(x) - x).abs().amax()) <= 2.0**-11 + 1e-9


def test_the_error_is_half_a_step_and_without_bias_inside_a_class():
    x = torch.linspace(2.0**-9, 0.12, 5001)
    error = decoded(x) - x
    assert float(error.abs().amax()) <= 2.0**-11 * 1.0001
    assert abs(float(error.mean())) < 2.0**-15


@together
@pytest.mark.parametrize(("scale", "bits"), [(1e-5, 2), (1e-2, 10), (0.25, 15), (100.0, 32)])
def test_the_size_follows_the_gradient(scale, bits):
    x = gaussian(40_000).clamp(-2, 2) * scale
    assert 8 * len(encoded(x)[1]) / 40_000 == pytest.approx(bits, rel=0.12)


def test_a_tensor_that_does_not_pay_travels_as_it_is():
    x = gaussian(1000) + 10
    form, body = encoded(x)
    assert form == 1
    assert bytes(body) == x.numpy().tobytes()


def test_what_is_not_finite_travels_as_it_is():
    """A shift by the exponent would make a number of it."""
    x = torch.cat([torch.tensor([math.nan, math.inf, -math.inf]), torch.zeros(100)])
    out = decoded(x)
    assert out[0].isnan()
    assert out[1:3].tolist() == [math.inf, -math.inf]
    assert bool((out[3:] == 0).all())


@together
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_there_are_no_tags_beyond_the_last_element(n):
    """GRACE appends four where n is a multiple of 4."""
    assert encoded(torch.zeros(n))[1] == [0] * math.ceil(n / 4)


def test_sizes_that_do_not_add_up_are_refused():
    code, x = Inceptionn(), gaussian(50) * 0.1
    buffer = code.compress(x)
    for place, change in ((0, 1), (3, 0x80), (4, 2), (6, 3)):
        broken = buffer.clone()
        broken[place] ^= change
        with pytest.raises(WireError):
            code.decompress(broken, x.shape)
    assert torch.equal(code.decompress(buffer, x.shape), decoded(x))


@together
@pytest.mark.parametrize("bad", [0, 16, -1, 10.0, 2e-10, True, "10", None])
def test_bad_bound(bad):
    with pytest.raises(ConfigError, match=re.escape(f"Inceptionn.bound must be an integer in [1, 15], got {bad!r}")):
        Inceptionn(bound=bad)
