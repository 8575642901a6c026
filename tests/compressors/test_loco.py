"""Four bits to nearest and errors in eight: by hand, against the default's passes, in training, on each engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from gradwire.catalogue import state_bytes
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.loco import LoCo
from gradwire.compressors.levels.ops import loco_encode, loco_encode_averaged
from gradwire.engine.exchange import Exchange
from gradwire.engine.policy import Policy
from gradwire.errors import ConfigError
from gradwire.kernels.stored import StoredForm, read, row_bytes, write
from gradwire.memory.averaged_error import AveragedError
from gradwire.testing.inputs import gaussian
from gradwire.testing.strategies import gradients
from gradwire.vocabulary import Key
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, run, sweep
from tests.ops.triton.checks import check, sizes
from tests.ops.triton.conftest import installed, interpreter, on  # noqa: F401
from tests.wire.levels import levels


def parse(payload: bytes, config: dict[str, int], shape: Sequence[int]) -> np.ndarray:
    """Read a payload as its row in docs/methods/levels.md says, without gradwire or torch: tests/wire compares it."""
    n, block = math.prod(shape), config["block"]
    blocks = -(-n // block)
    step = np.frombuffer(payload[: 4 * blocks], "<f4") / np.float32(7)
    return np.repeat(step, block)[:n] * levels(payload[4 * blocks :], 4, n)


def encode(
    code: LoCo, memory: AveragedError, grad: Tensor, error: Tensor, way: Callable[..., None], step: int = 1
) -> list[Tensor]:
    """One step by the method's own way or by the default; what it leaves."""
    layout, status = code.layout(grad.shape), torch.zeros(1, dtype=torch.int32)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    weights = memory.beta, 1 - memory.beta
    way(code, grad, error, *weights, layout.views(buffer), {}, Key(step=step), status)
    return [grad, error, buffer, status]


def test_an_example_by_hand() -> None:
    code = LoCo()
    x = torch.tensor([14.0, -7.0, 3.1, 2.9, -0.9, 0.0])
    assert code.decompress(code.compress(x), (6,)).tolist() == [14.0, -8.0, 4.0, 2.0, 0.0, 0.0]


def test_a_step_by_hand() -> None:
    """x = g + 0.5 m, and half of m stays."""
    memory, grad, error = AveragedError(beta=0.5, block=16), torch.tensor([7.0, 1.6, 0.0]), torch.zeros(1, 20).byte()
    write(error, torch.tensor([0.0, 127.0, -2.0]))
    before, _, buffer, status = encode(LoCo(block=16), memory, grad, error, LoCo.encode_averaged)
    assert before.tolist() == [0.0, 127.0, -2.0]
    # x is 7, 65.1, -1: the levels 1, 7 and 0 of 9.3 each.
    assert LoCo(block=16).decompress(buffer, (3,)).tolist() == pytest.approx([9.3, 65.1, 0.0])
    assert read(error, 3).tolist() == pytest.approx([-2.3, 63.5, -2.0], abs=63.5 / 254)
    assert status.item() == 0


@together
@pytest.mark.parametrize("block", [16, 48, 256, 1024])
@pytest.mark.parametrize("n", [0, 1, 15, 255, 257, 1000, 40_000])
@pytest.mark.parametrize("bad", [None, float("nan"), -float("inf")])
def test_one_pass_does_what_three_do(block: int, n: int, bad: float | None) -> None:
    code, memory, found = LoCo(block=block), AveragedError(block=block), []
    start = gaussian(n)
    if bad is not None and n:
        start[n // 2] = bad
    for way in (LoCo.encode_averaged, capabilities.encode_averaged.default):
        error = memory.form.zeros(n)
        write(error, 0.3 * torch.cos(torch.arange(float(n))))
        found.append(encode(code, memory, start.clone(), error, way))
    assert all(map(torch.equal, *found))
    assert found[0][-1].item() == (bad is not None and n > 0)


@pytest.mark.parametrize(("block", "fused"), [(256, True), (128, False)])
def test_the_fused_pass_is_for_blocks_of_one_length(block: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(LoCo, "encode", lambda *_: calls.append(1))
    error = AveragedError(block=block).form.zeros(1000)
    encode(LoCo(), AveragedError(block=block), torch.zeros(1000), error, LoCo.encode_averaged)
    assert bool(calls) != fused


@given(x=gradients(min_size=1))
def test_no_element_is_off_by_more_than_half_a_level_or_by_more_than_itself(x: Tensor) -> None:
    code = LoCo(block=16)
    blocks = torch.nn.functional.pad(x, (0, -len(x) % 16)).view(-1, 16).double()
    half = (blocks.abs().amax(1) / 14).repeat_interleave(16)[: len(x)]
    lost = (code.decompress(code.compress(x), x.shape) - x).abs().double()
    assert bool((lost <= half * (1 + 1e-5) + 2.0**-120).all())
    assert bool((lost <= x.abs().double() * (1 + 1e-5)).all())


def test_the_bound_of_what_is_lost_is_nearly_attained() -> None:
    code, x = LoCo(block=256), torch.full((256,), 0.4999 / 7)
    x[0] = 1.0
    lost = (code.decompress(code.compress(x), x.shape) - x).square().sum() / x.square().sum()
    assert 0.99 * (1 - capabilities.delta(code, 256)) < float(lost) <= 1 - capabilities.delta(code, 256)


def test_a_worker_keeps_a_byte_for_each_element_and_a_scale_for_each_block() -> None:
    assert state_bytes(LoCo(), (1024, 1024)) == 1 + 4 / 256
    exchange = Exchange(LoCo(), policy=Policy(min_numel=0))
    exchange.begin_step()
    exchange.run(gaussian(2**16), [("w", (256, 256))])
    tensors = exchange.residuals.worker
    assert {name: {key: each.nbytes for key, each in of.items()} for name, of in tensors.items()} == {
        "residual": {"w": 2**16 + 4 * 256}
    }


def distance(compressor: Compressor, memory: str | None, optimizer: type[torch.optim.Optimizer], rate: float) -> float:
    """The distance of quiet weights from their solution after 600 steps beside noisy ones, of 40 times their
    gradients."""
    generator, weights = torch.Generator().manual_seed(1), torch.zeros(512)
    exchange = Exchange(compressor, memory=memory, policy=Policy(min_numel=0), force=True)
    trained = optimizer([weights], lr=rate)
    for step in range(600):
        weights.grad = weights - 1.0
        weights.grad[::2] += 40 * torch.randn(256, generator=generator)
        exchange.begin_step()
        exchange.run(weights.grad, [("w", (512,))])
        trained.param_groups[0]["lr"] = rate * (1 - step / 600)
        trained.step()
    return float((weights - 1.0)[1::2].abs().mean())


@pytest.mark.parametrize(("optimizer", "rate"), [(torch.optim.SGD, 0.05), (torch.optim.AdamW, 0.03)])
def test_training_ends_where_no_compression_does_and_not_without_the_errors(optimizer: type, rate: float) -> None:
    exact, loco, forgetful = (
        distance(*way, optimizer, rate) for way in ((Identity(), None), (LoCo(), None), (LoCo(), "none"))
    )
    assert loco < exact + 0.2
    assert forgetful > 0.9


@together
@pytest.mark.parametrize("block", [0, 8, 24, 2048, 16.0, True])
def test_a_block_out_of_range_is_named(block: object) -> None:
    with pytest.raises(ConfigError, match=r"LoCo.block must be a multiple of 16 in \[16, 1024\], got "):
        LoCo(block=block)  # type: ignore[arg-type]


def payload(n: int, block: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {"norms": ((-(-n // block),), torch.float32), "codes": ((-(-n // 2),), torch.uint8)}


def encoding(n: int, block: int, finite: bool) -> Case:
    return Case(loco_encode, {"x": gradient(n, 1, finite=finite)}, payload(n, block), {"block": block})


def averaging(n: int, block: int, finite: bool) -> Case:
    """Errors of all sizes, of which one block has a scale that is infinite."""
    error = StoredForm(torch.uint8, block).zeros(n)
    write(error, gradient(n, 2).clamp(-1e9, 1e9) ** 3)
    if not finite and n > block:
        error[1] = 0
        error[1, block:].copy_(torch.tensor([torch.inf]).view(torch.uint8))
    assert error.shape[1] == row_bytes(block)
    outputs = {"grad": gradient(n, 1, finite=finite), "error": error.view(-1), **payload(n, block)}
    status = {"status": torch.tensor([2], dtype=torch.int32)}
    return Case(loco_encode_averaged, {}, outputs | status, {"block": block, "weight": 0.2, "share": 0.8})


def test_errors_near_the_largest_number_stay_finite(on) -> None:  # noqa: F811
    """A mean between 127 times the largest scale and the largest number, whose scale must not be rounded up."""
    largest = torch.finfo(torch.float32).max
    error = StoredForm(torch.uint8, 16).zeros(33)
    write(error, torch.tensor([largest, -largest, 0.5 * largest]).repeat(11))
    grad = torch.tensor([1e32, -1e32, 1e34]).repeat(11)
    outputs = {"grad": grad, "error": error.view(-1), **payload(33, 16), "status": torch.zeros(1, dtype=torch.int32)}
    case = Case(loco_encode_averaged, {}, outputs, {"block": 16, "weight": 0.0, "share": 1.0})
    expected = run(case, loco_encode_averaged.reference)
    found = read(expected["error"].view(-1, row_bytes(16)), 33)
    assert expected["status"].item() == 0
    assert found.isfinite().all()
    assert float(found.abs().max()) > (1 - 2**-16) * largest
    check_against_reference(case, 1, 0)
    check(case, on)


CASES = pytest.mark.parametrize(
    ("make", "block", "finite"),
    [(make, block, finite) for make in (encoding, averaging) for block in (16, 48, 1024) for finite in (True, False)],
)


@sweep
@CASES
def test_the_cpu_against_the_reference(n, threads, offset, make, block, finite):
    check_against_reference(make(n, block, finite), threads, offset)


@sizes
@CASES
def test_the_gpu_against_the_reference(on, n, make, block, finite):  # noqa: F811
    check(make(n, block, finite), on, n % 3)
