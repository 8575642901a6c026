import math
import re

import pytest
import torch
from hypothesis import given

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.levels.nuqsgd import NUQSGD
from gradwire.errors import ConfigError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.rounding import decoded, memory_after, relative_error


@together
@pytest.mark.parametrize("bits", range(2, 9))
def test_a_payload_is_one_norm_a_block_and_its_bits(bits):
    assert NUQSGD(bits=bits, block=64).layout((10, 13)).nbytes == 3 * 4 + math.ceil(130 * bits / 8)


@together
@pytest.mark.parametrize("bits", range(2, 9))
def test_every_level_is_exact(bits):
    s = 2 ** (bits - 1) - 2
    x = 4.0 * torch.cat([torch.tensor([0.0]), torch.exp2(-torch.arange(min(s, 60) + 1).float())])
    assert torch.equal(decoded(NUQSGD(bits=bits, block=512, norm="linf"), x), x)
    assert torch.equal(decoded(NUQSGD(bits=bits, block=512, norm="linf"), -x), -x)


@given(x=gradients(min_size=1, max_size=64))
def test_what_is_decoded_is_a_neighbouring_level(x):
    code = NUQSGD(bits=4, block=64, norm="linf")
    norm, out = float(x.abs().amax()), decoded(code, x)
    if norm < 2.0**-100:
        return
    levels = torch.tensor([0.0, *[2.0**-e for e in range(6, -1, -1)]], dtype=torch.float64)
    share = (x.double().abs() / norm).clamp(max=1.0)
    at = torch.bucketize(share, levels, right=False)
    above, below = levels[at], levels[(at - 1).clamp(min=0)]
    got = out.double().abs() / norm
    near = torch.minimum((got - above).abs(), (got - below).abs())
    assert bool((near <= 1e-6).all())
    assert bool((out * x >= 0).all())


@together
@pytest.mark.parametrize(("bits", "block"), [(4, 1024), (3, 16), (3, 64), (2, 64)])
def test_the_bound_is_not_far_from_what_can_happen(bits, block):
    # All elements but one at 4/9 of the smallest level, or at 1/y of it where these would be longer than the norm.
    code, s = NUQSGD(bits=bits, block=block, norm="l2"), 2 ** (bits - 1) - 2
    y = 2.0**-s * math.sqrt(block)
    small = min(4 / 9, 1 / y) * 2.0**-s
    x = torch.full((block,), small)
    x[0] = math.sqrt(max(0.0, 1 - (block - 1) * small**2)) * 4 / 3
    x /= x.norm()
    error = relative_error(code, x, 400)
    assert 0.3 * capabilities.omega(code, block) < error <= capabilities.omega(code, block) * 1.05


@together
@pytest.mark.parametrize("kind", ["spike", "heavy tail", "sorted", "constant"])
def test_the_bound_holds_under_either_norm(kind):
    for norm in ("l2", "linf"):
        code = NUQSGD(bits=3, block=64, norm=norm)
        assert relative_error(code, SPECIAL[kind](256), 100) <= capabilities.omega(code, 64) * 1.05


@together
@pytest.mark.parametrize(
    ("code", "feedback"),
    [
        (NUQSGD(), "optional"),
        (NUQSGD(bits=3), "unsafe"),
        (NUQSGD(bits=3, block=16), "optional"),
        (NUQSGD(bits=2), "unsafe"),
    ],
    ids=str,
)
def test_where_feedback_is_safe(code, feedback):
    assert code.feedback == feedback


def test_the_residual_is_bounded_where_feedback_is_safe_and_grows_where_not():
    assert memory_after(NUQSGD(), 50, 4096) < 1
    assert memory_after(NUQSGD(bits=2, block=4096), 30, 4096) > 30


def test_the_share_of_a_nearly_full_element_does_not_pass_the_last_level():
    x = torch.full((16,), 1e-3)
    x[0] = 1.0
    assert float(decoded(NUQSGD(bits=4, block=16), x).amax()) <= float(x.norm())


def test_nan_reaches_everyone_in_its_block_only():
    x = torch.ones(48)
    x[20] = math.nan
    assert decoded(NUQSGD(block=16), x).isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


def test_noise_averages_out():
    code, x = NUQSGD(), gaussian(2000)
    mean = torch.stack([decoded(code, x, Key(rank=rank)) for rank in range(16)]).mean(0)
    alone = float((decoded(code, x) - x).square().mean())
    assert float((mean - x).square().mean()) == pytest.approx(alone / 16, rel=0.2)


@together
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"bits": 1}, "NUQSGD.bits must be an integer in [2, 8], got 1"),
        ({"bits": True}, "NUQSGD.bits must be an integer in [2, 8], got True"),
        ({"block": 24}, "NUQSGD.block must be a multiple of 16 in [16, 65536], got 24"),
        ({"norm": "l1"}, "NUQSGD.norm must be 'l2' or 'linf', got 'l1'"),
    ],
)
def test_bad_parameters(given_, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        NUQSGD(**given_)
