import re

import pytest
import torch
from hypothesis import given

from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.contrib.compressors.signs.onebit_sgd import OneBitSGD
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together


def decoded(code: OneBitSGD | EFSignSGD, x: torch.Tensor) -> torch.Tensor:
    return code.decompress(code.compress(x), x.shape)


def feed(code: OneBitSGD, grad: torch.Tensor, residual: torch.Tensor) -> None:
    layout = code.layout(grad.shape)
    code.encode_feedback(grad, residual, layout.views(torch.empty(layout.nbytes, dtype=torch.uint8)), {}, Key())


def test_golden_vector():
    """An implementation inverted the bytes of its mask and decoded [506.5, 506.5, 510, 510]."""
    x, residual = torch.tensor([-2.0, -1.0, 1.0, 3.0]), torch.zeros(4)
    assert decoded(OneBitSGD(), x).tolist() == [-1.5, -1.5, 2.0, 2.0]
    feed(OneBitSGD(), x, residual)
    assert residual.tolist() == [-0.5, 0.5, -1.0, 1.0]


def test_the_residual_includes_what_was_left_before():
    x, residual = torch.tensor([1.0, 3.0, -1.0, -2.0]), torch.tensor([0.5, -0.5, 0.25, -0.25])
    total = x + residual
    feed(OneBitSGD(), x, residual)
    torch.testing.assert_close(residual + decoded(OneBitSGD(), total), total, rtol=0, atol=1e-6)


@given(x=gradients(min_size=1))
def test_it_is_a_projection(x):
    """Sums stay, the error is orthogonal to what is sent, and what is sent is sent unchanged when sent again."""
    out, wide = decoded(OneBitSGD(block=32), x).double(), x.double()
    size = float(wide.abs().sum()) + 1e-37
    for part, sent in zip(wide.split(32), out.split(32), strict=True):
        assert float(sent.sum() - part.sum()) == pytest.approx(0, abs=1e-5 * size)
        assert float(((part - sent) * sent).sum()) == pytest.approx(0, abs=1e-5 * size * size)
    again = decoded(OneBitSGD(block=32), out.float()).double()
    torch.testing.assert_close(again, out, rtol=1e-5, atol=1e-43)


@given(x=gradients(min_size=1))
def test_two_means_lose_no_more_than_one_scale(x):
    error, scaled = ((decoded(code, x).double() - x).square().sum() for code in (OneBitSGD(32), EFSignSGD(32)))
    assert float(error) <= float(scaled) * (1 + 1e-4) + 1e-9 * float(x.double().square().sum()) + 2e-74


def test_a_side_without_elements_is_zero():
    code = OneBitSGD(block=32)
    buffer = code.compress(torch.cat([torch.full((32,), 2.0), torch.full((20,), -4.0), torch.zeros(4)]))
    assert buffer[:16].view(torch.float32).tolist() == [0.0, 2.0, -4.0, 0.0]


def test_memory_of_normal_gradients_as_measured_in_the_literature():
    residual = torch.zeros(4096)
    for step in range(50):
        feed(OneBitSGD(block=4096), gaussian(4096, seed=step), residual)
    assert float(residual.square().mean().sqrt()) == pytest.approx(0.76, abs=0.05)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_reaches_everyone(value):
    x = torch.tensor([1.0, -1.0, value, 2.0])
    assert not decoded(OneBitSGD(), x).isfinite().all()


@together
@pytest.mark.parametrize("bad", [0, 16, 48, -32, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    message = f"OneBitSGD.block must be a multiple of 32 in [32, 65536], got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        OneBitSGD(block=bad)
