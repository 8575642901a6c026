import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compressors.qsgd import QSGD
from gradwire.errors import ConfigError
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.strategies import gradients
from gradwire.types import Key


def decoded(code: QSGD, x: torch.Tensor, key: Key) -> torch.Tensor:
    return code.decompress(code.compress(x, key=key), x.shape)


def relative_error(code: QSGD, x: torch.Tensor, draws: int) -> float:
    errors = torch.stack([decoded(code, x, Key(step=step)) - x for step in range(draws)])
    return float(errors.double().square().sum(1).mean() / x.double().square().sum())


def memory_after(code: QSGD, steps: int, n: int) -> float:
    """Rms of the residual when normal gradients are fed with feedback."""
    residual = torch.zeros(n)
    payload = code.layout((n,)).views(torch.empty(code.layout((n,)).nbytes, dtype=torch.uint8))
    for step in range(steps):
        code.encode_feedback(gaussian(n, seed=step), residual, payload, {}, Key(step=step))
    return float(residual.double().square().mean().sqrt())


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_payload_is_one_norm_a_block_and_its_bits(bits):
    assert QSGD(bits=bits, block=64).layout((10, 13)).nbytes == 3 * 4 + math.ceil(130 * bits / 8)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("norm", ["linf", "l2"])
@given(x=gradients(min_size=1))
@settings(max_examples=15, deadline=None)
def test_no_element_is_off_by_more_than_one_level(bits, norm, x):
    code = QSGD(bits=bits, block=16, norm=norm)
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16).double()
    norms = blocks.abs().amax(1) if norm == "linf" else blocks.square().sum(1).sqrt()
    error = (decoded(code, x, Key()) - x).abs().double()
    step = (norms / code.levels).repeat_interleave(16)[: len(x)]
    overflow = step * code.levels > 1e19 if norm == "l2" else torch.zeros(len(x), dtype=torch.bool)
    assert bool(((error <= step * (1 + 1e-5) + 2.0**-120) | overflow).all())


@given(x=gradients(min_size=1, max_size=16))
@settings(max_examples=40, deadline=None)
def test_the_largest_element_of_a_block_is_exact_in_linf(x):
    out, largest = decoded(QSGD(bits=5, block=16), x, Key()), x.abs().argmax()
    assert float(out[largest]) == pytest.approx(float(x[largest]), rel=1e-6, abs=2.0**-120)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_linf_bound_is_attained(bits):
    code = QSGD(bits=bits, block=512)
    omega = code.omega(512)
    x = torch.full((512,), 1 / (2 * code.levels * (1 + omega)))
    x[0] = 1.0
    assert relative_error(code, x, 400) == pytest.approx(omega, rel=0.03)


@given(
    st.sampled_from([1, 3, 7]),
    st.lists(st.floats(0, 1), min_size=1, max_size=200),
)
def test_the_linf_bound_holds_for_the_exact_variance(s, rest):
    a = s * torch.tensor([1.0, *rest], dtype=torch.float64)
    p = a - a.floor()
    variance, size = float((p * (1 - p)).sum()), float(a.square().sum())
    bits = {1: 2, 3: 3, 7: 4}[s]
    assert variance <= QSGD(bits=bits).omega(len(a)) * size * (1 + 1e-12)


def test_measured_variance_on_normal_gradients():
    x = gaussian(8192)
    assert relative_error(QSGD(bits=4, norm="l2"), x, 20) == pytest.approx(1.58, rel=0.05)
    assert relative_error(QSGD(bits=4, norm="linf"), x, 20) == pytest.approx(0.036, rel=0.1)
    assert relative_error(QSGD(bits=8, norm="linf"), x, 20) == pytest.approx(1.1e-4, rel=0.1)


def test_noise_of_different_ranks_is_independent():
    code, x, ranks = QSGD(bits=3, block=64), gaussian(4096), 16
    mean = torch.stack([decoded(code, x, Key(rank=rank)) for rank in range(ranks)]).mean(0)
    alone = float((decoded(code, x, Key()) - x).square().mean())
    assert float((mean - x).square().mean()) == pytest.approx(alone / ranks, rel=0.15)


@pytest.mark.parametrize(
    ("code", "feedback"),
    [
        (QSGD(), "optional"),
        (QSGD(bits=3, block=65536), "optional"),
        (QSGD(bits=2), "unsafe"),
        (QSGD(bits=4, block=4096, norm="l2"), "unsafe"),
        (QSGD(bits=8, block=4096, norm="l2"), "optional"),
        (QSGD(bits=4, block=16, norm="l2"), "optional"),
    ],
    ids=str,
)
def test_where_feedback_is_safe(code, feedback):
    assert code.feedback == feedback


def test_feedback_diverges_exactly_where_it_is_called_unsafe():
    coarse, fine = QSGD(bits=4, block=4096, norm="l2"), QSGD(bits=8, block=4096, norm="l2")
    assert coarse.feedback == "unsafe"
    assert memory_after(coarse, 10, 4096) > 30
    assert memory_after(coarse, 50, 4096) > 1000
    assert fine.feedback == "optional"
    assert memory_after(fine, 50, 4096) == pytest.approx(0.21, rel=0.1)


@pytest.mark.parametrize("kind", ["spike", "constant", "heavy tail", "alternating", "sorted"])
def test_linf_feedback_stays_below_its_proven_bound(kind):
    code, x = QSGD(bits=3, block=512), SPECIAL[kind](512)
    residual, bound = torch.zeros(512), float(x.abs().amax()) / (code.levels - 1)
    payload = code.layout((512,)).views(torch.empty(code.layout((512,)).nbytes, dtype=torch.uint8))
    for step in range(200):
        code.encode_feedback(x.clone(), residual, payload, {}, Key(step=step))
        assert float(residual.abs().amax()) <= bound * (1 + 1e-5)


def test_a_block_too_small_for_its_inverse_is_zero():
    code = QSGD(block=16)
    x = torch.cat([torch.full((16,), 2.0**-121), torch.full((16,), 2.0**-120)])
    assert decoded(code, x, Key()).tolist() == [0.0] * 16 + [2.0**-120] * 16


def test_a_norm_that_overflows_is_reported():
    code, status = QSGD(bits=8, block=16, norm="l2"), torch.zeros(1, dtype=torch.int32)
    grad, residual = torch.full((20,), 1e30), torch.full((20,), 0.5)
    payload = code.layout((20,)).views(torch.empty(code.layout((20,)).nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, Key(), status)
    assert status.item() == 1
    assert grad.tolist() == [0.5] * 20


def test_nan_reaches_everyone_in_its_block_only():
    x = torch.ones(48)
    x[20] = math.nan
    out = decoded(QSGD(block=16), x, Key())
    assert out.isnan().tolist() == [False] * 16 + [True] * 16 + [False] * 16


@pytest.mark.parametrize("bad", [1, 9, 0, -4, 4.0, True, "4", None, math.nan])
def test_bad_bits(bad):
    with pytest.raises(ConfigError, match=re.escape(f"QSGD.bits must be an integer in [2, 8], got {bad!r}")):
        QSGD(bits=bad)


@pytest.mark.parametrize("bad", [0, 8, 24, -16, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"QSGD.block must be a multiple of 16 in [16, 65536], got {bad!r}")
    ):
        QSGD(block=bad)


@pytest.mark.parametrize("bad", ["l1", "", 2, None, math.inf])
def test_bad_norm(bad):
    with pytest.raises(ConfigError, match=re.escape(f"QSGD.norm must be 'linf' or 'l2', got {bad!r}")):
        QSGD(norm=bad)
