"""x = g + beta m, m = (1 - beta) m + x - D(Q(x)) in codes of 8 bits, and all of it can be taken back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.sparse.dgc import DGC
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.wrappers.compose import compose
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.ternary.strom import Strom
from gradwire.contrib.compressors.transforms.demo import DeMo
from gradwire.contrib.compressors.wrappers.entropy import Entropy
from gradwire.errors import ConfigError
from gradwire.kernels.stored import StoredForm, read, write
from gradwire.memory.averaged_error import AveragedError
from gradwire.memory.base import check_memory
from gradwire.vocabulary import Key
from tests.cases import together

N = 1000
ONE_ROUND = [
    name for name in registry.names("compressors") if not isinstance(registry.build("compressors", name), MultiRound)
]


def encode(
    memory: AveragedError, compressor: Compressor, grad: Tensor, error: Tensor, step: int = 1, scale: float = 1.0
) -> tuple[Tensor, int]:
    """Run one step; returns what was decoded, and the status."""
    shape = (25, 40)
    layout, status = compressor.layout(shape), torch.zeros(1, dtype=torch.int32)
    payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8))
    state = compressor.init_state(shape, Key(seed=1))
    memory.encode(compressor, grad.view(shape), {"residual": error}, payload, state, Key(step=step), status, scale)
    out = torch.zeros(shape)
    compressor.add_decoded(payload, out, 1.0 / scale)
    return out.view(-1), status.item()


def stored(memory: AveragedError, values: Tensor) -> Tensor:
    tensor = memory.form.zeros(values.numel())
    write(tensor, values)
    return tensor


@together
@pytest.mark.parametrize("name", ONE_ROUND)
@pytest.mark.parametrize("memory", [AveragedError(), AveragedError(beta=0.75, reset=0, block=16)], ids=str)
def test_the_equations_and_the_way_back(name: str, memory: AveragedError) -> None:
    compressor, grad = registry.build("compressors", name), torch.randn(N)
    error = stored(memory, 0.3 * torch.randn(N))
    before, m, work = error.clone(), read(error, N), grad.clone()
    decoded, status = encode(memory, compressor, work, error)
    wanted = (1 - memory.beta) * m + (grad + memory.beta * m - decoded)
    torch.testing.assert_close(read(error, N), wanted, rtol=0, atol=float(wanted.abs().max()) / 253)
    assert status == 0
    memory.rollback(work, {"residual": error})
    assert torch.equal(error, before)


def test_a_summable_payload_keeps_the_error_in_gradient_units() -> None:
    memory, grad = AveragedError(block=16), torch.randn(N)
    error = memory.form.zeros(N)
    decoded, _ = encode(memory, FP16(), grad.clone(), error, scale=0.25)
    left = grad - decoded
    torch.testing.assert_close(read(error, N), left, rtol=0, atol=float(left.abs().max()) / 253)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_reported_and_can_be_taken_back(bad: float) -> None:
    memory, grad = AveragedError(), torch.randn(N)
    grad[-1] = bad
    error = stored(memory, torch.randn(N))
    before = error.clone()
    assert encode(memory, QSGD(), grad, error)[1] & 1
    memory.rollback(grad, {"residual": error})
    assert torch.equal(error, before)


def test_errors_are_forgotten_before_every_so_many_steps() -> None:
    memory, grad = AveragedError(reset=3), torch.randn(N)
    fresh = encode(memory, QSGD(), grad.clone(), memory.form.zeros(N), step=6)[0]
    for step, forgets in ((1, False), (3, True), (4, False), (6, True)):
        error, work = stored(memory, torch.ones(N)), grad.clone()
        decoded = encode(memory, QSGD(), work, error, step)[0]
        left = grad - decoded if forgets else 0.8 + grad + 0.2 - decoded
        torch.testing.assert_close(read(error, N), left, rtol=0, atol=float(left.abs().max()) / 253)
        assert torch.equal(work, read(stored(memory, torch.ones(N)), N)), "what takes the step back is the error"
        if step == 6:
            assert torch.equal(decoded, fresh)


def test_over_many_steps_the_mean_that_waits_is_all_that_was_not_sent() -> None:
    memory, total, sent = AveragedError(reset=0), torch.zeros(N), torch.zeros(N)
    error = memory.form.zeros(N)
    for step in range(40):
        grad = torch.sin(torch.arange(float(N)) + step)
        total += grad
        sent += encode(memory, QSGD(bits=4), grad, error, step)[0]
    torch.testing.assert_close(sent + read(error, N), total, rtol=0, atol=0.1)


def test_a_byte_and_a_scale_are_kept() -> None:
    for block in (16, 256, 1024):
        memory = AveragedError(block=block)
        assert memory.form == StoredForm(torch.uint8, block)
        assert memory.form.zeros(2**16).nbytes == 2**16 * (1 + 4 / block)


def test_methods_of_several_rounds_are_refused() -> None:
    for call in (
        lambda: AveragedError().compensate(torch.ones(1), {}),
        lambda: AveragedError().update(torch.ones(1), {}, torch.tensor(False)),
    ):
        with pytest.raises(ConfigError, match="memory 'averaged_error' serves methods of one round"):
            call()


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"beta": 0.0}, r"AveragedError.beta must be in \(0, 1\], got 0.0"),
        ({"beta": 1.5}, "AveragedError.beta"),
        ({"beta": True}, "AveragedError.beta"),
        ({"reset": -1}, "AveragedError.reset must be an integer >= 0, got -1"),
        ({"reset": 2.5}, "AveragedError.reset"),
        ({"block": 24}, r"AveragedError.block must be a multiple of 16 in \[16, 1024\], got 24"),
        ({"block": 2048}, "AveragedError.block"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        AveragedError(**values)


@together
@pytest.mark.parametrize("compressor", [TopK(), compose(TopK(), QSGD()), Strom(), Entropy(TopK())], ids=str)
def test_a_method_that_sends_a_few_elements_is_refused(compressor: Compressor) -> None:
    with pytest.raises(
        ConfigError, match=r"memory 'averaged_error' rounds errors .* would never grow: use memory='res.*force=True"
    ):
        check_memory(compressor, AveragedError(), force=False)
    check_memory(compressor, AveragedError(), force=True)


@together
@pytest.mark.parametrize(
    ("compressor", "text"),
    [
        (RandomK(scaled=True), "would grow without bound"),
        (DGC(), "makes another method"),
        (DeMo(), "makes another method"),
    ],
    ids=str,
)
def test_what_no_other_remedy_mends_is_said_first(compressor: Compressor, text: str) -> None:
    """These would be refused again with memory='residual', which is the remedy for a sparsifier."""
    with pytest.raises(ConfigError, match=f"memory 'averaged_error' {text}"):
        check_memory(compressor, AveragedError(), force=False)
