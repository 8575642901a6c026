"""phi = beta m + gamma g, psi = phi - D(Q(phi)), in every path, and all of it can be taken back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.errors import ConfigError
from gradwire.kernels.stored import form_of, read, write
from gradwire.memory.residual import Residual
from gradwire.vocabulary import Key
from tests.cases import together

N = 1000


def encode(memory: Residual, compressor: Compressor, grad: Tensor, residual: Tensor, scale: float = 1.0) -> Tensor:
    """Run one step; returns what was decoded."""
    shape = (25, 40)
    layout, status = compressor.layout(shape), torch.zeros(1, dtype=torch.int32)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    state = compressor.init_state(shape, Key(seed=1))
    kept = {"residual": residual if form_of(residual).block else residual.view(shape)}
    memory.encode(compressor, grad.view(shape), kept, payload, state, Key(), status, scale)
    out = torch.zeros(shape)
    compressor.add_decoded(payload, out)
    return out.view(-1)


@together
@pytest.mark.parametrize("name", registry.names("compressors"))
@pytest.mark.parametrize(("beta", "gamma"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (0.9, 2.0)])
def test_decoded_and_residual_make_the_compensated_gradient(name: str, beta: float, gamma: float) -> None:
    memory, compressor = Residual(beta, gamma), registry.build("compressors", name)
    grad, residual = torch.randn(N), 0.3 * torch.randn(N)
    x = beta * residual + gamma * grad
    before = residual.clone()
    work = grad.clone()
    decoded = encode(memory, compressor, work, residual)
    torch.testing.assert_close(decoded + residual, x, rtol=0, atol=2e-6)
    memory.rollback(work, {"residual": residual})
    assert torch.equal(residual, before)


@together
@pytest.mark.parametrize("name", [n for n in registry.names("compressors") if registry.find("compressors", n).summable])
def test_a_scaled_payload_keeps_the_residual_in_gradient_units(name: str) -> None:
    grad, residual = torch.randn(N), torch.zeros(N)
    decoded = encode(Residual(), registry.build("compressors", name), grad.clone(), residual, scale=0.25)
    torch.testing.assert_close(4 * decoded + residual, grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("weight", "scale", "fused"), [(1.0, 1.0, True), (0.25, 1.0, False), (0.25, 0.25, False)])
def test_the_fused_kernel_is_used_for_weights_of_one_and_only_for_these(
    weight: float, scale: float, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    whole = BF16.encode_feedback
    monkeypatch.setattr(BF16, "encode_feedback", lambda self, *given: calls.append(1) or whole(self, *given))
    grad, residual = torch.randn(N), torch.randn(N)
    x = weight * (grad + residual)
    decoded = encode(Residual(weight, weight), BF16(), grad, residual, scale)
    assert bool(calls) == fused
    torch.testing.assert_close(decoded / scale + residual, x, rtol=0, atol=1e-6)


def test_update_keeps_the_old_residual_of_a_bad_step() -> None:
    residual = torch.tensor([1.0, 2.0])
    kept = {"residual": residual}
    Residual().update(torch.tensor([float("nan"), 5.0]), kept, torch.tensor(True))
    assert residual.tolist() == [1.0, 2.0]
    Residual().update(torch.tensor([4.0, 5.0]), kept, torch.tensor(False))
    assert residual.tolist() == [4.0, 5.0]


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"beta": 0.0}, r"Residual.beta must be in \(0, 1\], got 0.0"),
        ({"beta": 1.5}, "Residual.beta"),
        ({"gamma": 0.0}, "Residual.gamma must be a finite number > 0"),
        ({"gamma": float("nan")}, "Residual.gamma"),
        ({"beta": True}, "Residual.beta"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Residual(**values)


@pytest.mark.parametrize("name", ["topk", "twobit", "qsgd"])
def test_a_residual_of_16_bits_is_the_rounded_one_and_can_be_taken_back(name: str) -> None:
    compressor = registry.build("compressors", name)
    grad, before = torch.randn(N), (0.3 * torch.randn(N)).bfloat16()
    residual, work = before.clone(), grad.clone()
    decoded = encode(Residual(dtype="bfloat16"), compressor, work, residual)
    assert residual.dtype == torch.bfloat16
    assert torch.equal(residual, (grad + before.float() - decoded).bfloat16())
    Residual(dtype="bfloat16").rollback(work, {"residual": residual})
    assert torch.equal(residual, before)


def test_an_update_of_16_bits_keeps_the_old_residual_of_a_bad_step() -> None:
    residual, unsent = torch.ones(70_000).bfloat16(), torch.linspace(0, 1, 70_000)
    memory = Residual(dtype="bfloat16")
    memory.update(unsent, {"residual": residual}, torch.tensor(True))
    assert bool(residual.eq(1).all())
    memory.update(unsent, {"residual": residual}, torch.tensor(False))
    assert torch.equal(residual, unsent.bfloat16())


@together
@pytest.mark.parametrize("name", ["topk", "twobit", "qsgd", "powersgd", "randomk"])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_a_residual_of_4_bits_is_within_half_a_level_and_can_be_taken_back(name: str, beta: float) -> None:
    memory, compressor = Residual(beta=beta, dtype="int4"), registry.build("compressors", name)
    grad, residual = torch.randn(N), memory.form.zeros(N)
    write(residual, 0.3 * torch.randn(N))
    before, m, work = residual.clone(), read(residual, N), grad.clone()
    decoded = encode(memory, compressor, work, residual)
    wanted = grad + beta * m - decoded
    largest = torch.nn.functional.pad(wanted.abs(), (0, -N % 256)).view(-1, 256).amax(1, keepdim=True)
    error = (read(residual) - torch.nn.functional.pad(wanted, (0, -N % 256))).view(-1, 256).abs()
    assert residual.nbytes == 4 * (128 + 4)
    assert bool((error <= largest / 13.99).all())
    assert not bool(read(residual, N)[wanted == 0].any())
    memory.rollback(work, {"residual": residual})
    assert torch.equal(residual, before)


def test_what_comes_back_to_a_residual_of_4_bits_is_added_where_it_belongs() -> None:
    memory = Residual(dtype="int4")
    residual = memory.form.zeros(300)
    memory.returned(torch.zeros(300), {"residual": residual}, torch.tensor([2, 280]), torch.tensor([7.0, -14.0]))
    memory.returned(torch.zeros(300), {"residual": residual}, torch.tensor([3]), torch.tensor([-3.0]))
    expected = torch.zeros(300)
    expected[2], expected[3], expected[280] = 7.0, -3.0, -14.0
    torch.testing.assert_close(read(residual, 300), expected, rtol=1e-4, atol=0)


def test_an_update_of_4_bits_keeps_the_old_residual_of_a_bad_step() -> None:
    memory, unsent = Residual(dtype="int4"), torch.linspace(0, 1, 70_000)
    residual = memory.form.zeros(70_000)
    write(residual, torch.ones(70_000))
    before = residual.clone()
    memory.update(unsent, {"residual": residual}, torch.tensor(True))
    assert torch.equal(residual, before)
    memory.update(unsent, {"residual": residual}, torch.tensor(False))
    torch.testing.assert_close(read(residual, 70_000), unsent, rtol=0, atol=1 / 13.99)


def test_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Residual\.dtype must be 'float32' or 'bfloat16' or 'int4', got 'float16'"):
        Residual(dtype="float16")
