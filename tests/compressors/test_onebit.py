import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.compressors.signs.onebit import OneBit
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.cases import together

GOLDEN = [0.6, 0.5, -0.1, 0.51, 2.0, -2.0, 0.0, math.nan, 0.7]
LEFT = [-0.4, 1.5, 0.9, -0.49, 1.0, -1.0, 1.0, math.nan, -0.3]


def feed(code: OneBit, grad: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    codes = torch.empty(code.layout(grad.shape).nbytes, dtype=torch.uint8)
    code.encode_feedback(grad, residual, (codes,), {}, Key())
    return codes


def test_golden_vector():
    residual = torch.zeros(9)
    codes = feed(OneBit(threshold=0.5), torch.tensor(GOLDEN), residual)
    assert codes.numpy().tobytes() == bytes.fromhex("98800000")
    assert torch.allclose(residual, torch.tensor(LEFT), rtol=0, atol=1e-6, equal_nan=True)


def test_the_threshold_itself_does_not_fire():
    code = OneBit(threshold=0.25)
    x = torch.tensor([0.25, 0.25 + 2**-20, -0.25, 1.0])
    assert code.decompress(code.compress(x), (4,)).tolist() == [-1.0, 1.0, -1.0, 1.0]


def test_the_rest_of_the_last_word_decodes_to_nothing():
    code = OneBit()
    memory = torch.zeros(8)
    code.add_decoded((torch.full((4,), 0xFF, dtype=torch.uint8),), memory[:3])
    assert memory.tolist() == [1.0] * 3 + [0.0] * 5


def test_a_gradient_of_zero_dithers():
    residual, sent = torch.zeros(1), []
    for _ in range(6):
        codes = feed(OneBit(threshold=0.5), torch.zeros(1), residual)
        sent.append(OneBit().decompress(codes, (1,)).item())
    assert sent == [-1.0, 1.0] * 3


@given(st.floats(-2, 2, width=32), st.lists(st.floats(-1, 1, width=32), max_size=40))
def test_the_residual_of_gradients_within_one_stays_bounded(threshold, pushes):
    residual = torch.zeros(1)
    for value in pushes:
        feed(OneBit(threshold), torch.tensor([value]), residual)
        assert residual.abs().item() <= 1 + abs(threshold) + 1e-5


def test_a_shard_is_cut_at_whole_words():
    code, x = OneBit(threshold=0.0), gaussian(100)
    assert code.alignment == 32
    assert torch.equal(torch.cat([code.compress(part) for part in (x[:64], x[64:])]), code.compress(x))


@together
@pytest.mark.parametrize("good", [0, 0.0, -3.5, 2])
def test_any_real_threshold(good):
    assert OneBit(good).compress(torch.tensor([good + 1.0, good - 1.0])).tolist() == [0b10000000, 0, 0, 0]


@together
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e39, 1e-46, True, "0", None])
def test_bad_threshold(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"OneBit.threshold must be a finite number in float32, got {bad!r}")
    ):
        OneBit(threshold=bad)


@together
@pytest.mark.parametrize("factor", [2.0**-20, 1.0, 2.0**30])
@pytest.mark.parametrize("threshold", [0.0, 0.5, -0.25])
def test_a_mean_step_makes_the_code_scale_with_the_gradient(factor, threshold):
    code, x = OneBit(threshold, scale="mean"), gaussian(1000)
    expected = torch.where(x > threshold * x.abs().mean(), x.abs().mean(), -x.abs().mean())
    out = code.decompress(code.compress(x * factor), (1000,)) / factor
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=0)


def test_one_number_in_front_of_the_same_codes():
    x = torch.tensor(GOLDEN[:7] + GOLDEN[8:])
    unit = OneBit(threshold=0.0).compress(x)
    mean = OneBit(threshold=0.0, scale="mean").compress(x)
    assert torch.equal(mean[4:], unit)
    assert mean[:4].view(torch.float32).item() == pytest.approx(float(x.abs().mean()), rel=1e-6)


def test_with_a_mean_step_small_gradients_are_not_drowned():
    code, residual, sent = OneBit(threshold=0.0, scale="mean"), torch.zeros(100), torch.zeros(100)
    total = torch.zeros(100)
    for step in range(60):
        grad = 1e-3 * (gaussian(100) + 0.5 * gaussian(100, seed=step))
        payload = code.layout((100,)).views(torch.empty(20, dtype=torch.uint8))
        total += grad
        code.encode_feedback(grad, residual, payload, {}, Key())
        code.add_decoded(payload, sent)
    torch.testing.assert_close(sent + residual, total, rtol=0, atol=1e-5)
    assert float(residual.norm() / total.norm()) < 0.2


def test_a_step_of_zero_is_zero():
    code = OneBit(scale="mean")
    assert code.decompress(code.compress(torch.zeros(9)), (9,)).tolist() == [0.0] * 9


@together
@pytest.mark.parametrize("bad", ["max", "", 1, None])
def test_bad_scale(bad):
    with pytest.raises(ConfigError, match=re.escape(f"OneBit.scale must be 'unit' or 'mean', got {bad!r}")):
        OneBit(scale=bad)
