import re

import pytest
import torch
from hypothesis import given

from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.errors import ConfigError
from gradwire.memory.residual import Residual
from gradwire.testing.inputs import SPECIAL, gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together


def decoded(code: EFSignSGD, x: torch.Tensor) -> torch.Tensor:
    return code.decompress(code.compress(x), x.shape)


def feed(code: EFSignSGD, grad: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
    layout = code.layout(grad.shape)
    payload = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8))
    code.encode_feedback(grad, residual, payload, {}, Key())
    return payload


def test_golden_vector():
    x = torch.tensor([-2.0, -1.0, 1.0, 3.0])
    out = decoded(EFSignSGD(), x)
    assert out.tolist() == [-1.75, -1.75, 1.75, 1.75]
    assert float((out - x).square().sum()) == 15 - 49 / 4


@given(x=gradients(min_size=1))
def test_the_error_is_the_one_of_the_docs(x):
    code = EFSignSGD(block=32)
    error = (decoded(code, x).double() - x.double()).square().sum()
    wide = [part.double() for part in x.split(32)]
    exact = sum(part.square().sum() - part.abs().sum() ** 2 / len(part) for part in wide)
    assert float(error) == pytest.approx(float(exact), rel=1e-4, abs=1e-5 * float(x.double().square().sum()) + 2e-74)


def test_the_loss_on_normal_elements():
    x = gaussian(100_000)
    error = (decoded(EFSignSGD(), x) - x).square().sum() / x.square().sum()
    assert float(error) == pytest.approx(0.364, abs=0.005)


@pytest.mark.parametrize("factor", [2.0**-60, 0.125, 2.0**40])
def test_it_scales_with_the_gradient(factor):
    x = gaussian(1000)
    assert torch.equal(decoded(EFSignSGD(), x * factor), decoded(EFSignSGD(), x) * factor)


def test_the_result_is_a_mean_from_the_first_step_on():
    """An implementation gave the sum over the ranks, and divided the first step by the learning rate: [40, 4, 4]."""
    code, residuals = EFSignSGD(), torch.zeros(4, 64)
    for _ in range(3):
        payloads = [feed(code, torch.ones(64), residual) for residual in residuals]
        mean = torch.zeros(64)
        code.add_decoded_many(tuple(torch.stack(fields) for fields in zip(*payloads, strict=True)), mean, 1 / 4)
        assert mean.tolist() == [1.0] * 64


def test_the_papers_form_gives_updates_instead_of_gradients():
    code, kept, status = EFSignSGD(), {"residual": torch.zeros(8)}, torch.zeros(1, dtype=torch.int32)
    layout, sent, total = code.layout((8,)), torch.zeros(8), torch.zeros(8)
    for step in range(50):
        payload, grad = layout.views(torch.empty(layout.nbytes, dtype=torch.uint8)), gaussian(8, seed=step)
        total += 0.125 * grad
        Residual(gamma=0.125).encode(code, grad, kept, payload, {}, Key(), status)
        code.add_decoded(payload, sent)
    torch.testing.assert_close(sent + kept["residual"], total, rtol=0, atol=1e-5)


@together
@pytest.mark.parametrize("kind", ["one hot", "heavy tail", "constant", "spike"])
def test_the_residual_stays_bounded(kind):
    """|m| <= 2 sqrt(1 - delta) / delta |g|, with delta = 1 / 32: less than 64 |g|, however long it goes on."""
    code, x, residual = EFSignSGD(block=32), SPECIAL[kind](512), torch.zeros(512)
    for _ in range(300):
        feed(code, x, residual)
        assert float(residual.norm()) <= 64 * float(x.norm())


def test_memory_of_normal_gradients_as_measured_in_the_literature():
    residual = torch.zeros(4096)
    for step in range(50):
        feed(EFSignSGD(block=4096), gaussian(4096, seed=step), residual)
    assert float(residual.square().mean().sqrt()) == pytest.approx(0.75, abs=0.05)


def test_zeros_arrive_as_zeros_and_the_last_block_may_be_short():
    x = torch.cat([torch.zeros(32), torch.full((8,), -3.0)])
    assert decoded(EFSignSGD(block=32), x).tolist() == [0.0] * 32 + [-3.0] * 8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_reaches_everyone_in_its_block_only(value):
    x = torch.ones(96)
    x[40] = value
    finite = decoded(EFSignSGD(block=32), x).isfinite()
    assert finite.tolist() == [True] * 32 + [False] * 32 + [True] * 32


@together
@pytest.mark.parametrize("bad", [0, 16, 48, -32, 131072, 512.0, True, "512", None])
def test_bad_block(bad):
    message = f"EFSignSGD.block must be a multiple of 32 in [32, 65536], got {bad!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        EFSignSGD(block=bad)
