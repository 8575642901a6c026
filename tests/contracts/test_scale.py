"""A method that follows the gradient's scale does so at any scale: C(a x) = a C(x), bit for bit for powers of two.

Squares and products of tiny or huge elements vanish or overflow in float32, where the elements themselves do not.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.fp16 import FP16
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.contrib.compressors.levels.nuqsgd import NUQSGD
from gradwire.contrib.compressors.transforms.thc import THC
from gradwire.memory.base import default_memory
from gradwire.testing._expect import decode, encode
from gradwire.testing.inputs import gaussian
from gradwire.vocabulary import Key
from tests.contracts.test_compressors import FOLDER
from tests.contracts.thread_ranks import COMPRESSORS, PLACES, N, exchange_in_threads, goes
from tests.golden import freeze as golden

SCALES = (2.0**-85, 2.0**-60, 2.0**60, 2.0**95)


def follows(code: Compressor) -> bool:
    """Return whether a method has no unit of its own: no fixed threshold, step or bound, and no 16-bit float of narrow
    range."""
    if code.name in ("ef21", "entropy"):
        return follows(code.inner)  # type: ignore[attr-defined]
    if code.name == "compose":
        return follows(code.outer) and follows(code.inner)  # type: ignore[attr-defined]
    given = code.to_config()
    fixed = any(isinstance(given.get(name), float) for name in ("threshold", "v")) and given.get("scale") != "mean"
    return (
        not fixed and code.name not in ("signsgd", "signum", "inceptionn", "fp16") and given.get("values") != "float16"
    )


FOLLOWING = [code for name in registry.names("compressors") for code in golden.variants(FOLDER, name) if follows(code)]


@pytest.mark.parametrize("code", FOLLOWING, ids=str)
def test_what_arrives_scales_with_the_gradient(code: Compressor) -> None:
    x = gaussian(300, seed=3).view(15, 20) ** 3
    expected = decode(code, encode(code, x, Key(step=2))[1], x)
    slack = 0.0 if capabilities.portable(code) else 1e-5 * float(expected.abs().max())
    for scale in SCALES:
        found = decode(code, encode(code, x * scale, Key(step=2))[1], x) / scale
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=slack, msg=lambda text, s=scale: f"{s}: {text}")


@pytest.mark.parametrize(
    "code",
    [QSGD(norm="l2"), QSGD(norm="l2", block=None), NUQSGD(), TernGrad(), THC(), PowerSGD(rank=2, iterations=2)],
    ids=lambda code: code.name,
)
def test_feedback_loses_nothing_at_any_scale(code: Compressor) -> None:
    x = gaussian(5000, seed=4).view(50, 100)
    for scale in SCALES:
        grad, residual, status = x * scale, torch.zeros_like(x), torch.zeros(1, dtype=torch.int32)
        buffer = torch.zeros(code.layout(x.shape).nbytes, dtype=torch.uint8)
        payload = code.layout(x.shape).views(buffer)
        code.encode_feedback(grad, residual, payload, code.init_state(x.shape, Key()), Key(step=2), status)
        sent = decode(code, payload, x)
        assert status.item() == 0
        assert bool(sent.any())
        torch.testing.assert_close(sent / scale + residual / scale, x, rtol=0, atol=1e-4)


LARGEST = torch.finfo(torch.float32).max


def huge(how: str, step: int, rank: int) -> torch.Tensor:
    """A gradient; in one step it has elements near the largest float32: one or two of a rank, all, or all equal."""
    x = torch.randn(N, generator=torch.Generator().manual_seed(31 * step + rank))
    if step != 1:
        return x
    if how == "two" and rank == 0:
        x[PLACES["a.weight"].start + 5], x[PLACES["b.weight"].start + 7] = LARGEST, -3e38
    elif how == "spread":
        x *= 3e38 / x.abs().max()
    elif how == "all":
        x = torch.where(x > 0, LARGEST, -LARGEST)
    elif how == "equal":
        x.fill_(LARGEST)
    return x


@pytest.mark.parametrize("strategy", ["allreduce", "allgather", "two_phase", "oktopk"])
def test_elements_near_the_largest_number_come_out_finite_or_the_step_does_not_count_on_any_rank(strategy: str) -> None:
    """Nor does anything that is kept become infinite, or the training would never recover."""
    hows = itertools.cycle(["two", "spread", "all", "equal"])
    carried = [each for each in COMPRESSORS if goes(each, registry.build("memory", default_memory(each)), strategy)]
    for code, how in zip(carried, hows, strict=False):
        ranks = exchange_in_threads(code, 2, 3, partial(huge, how), strategy=strategy)
        finite = [[bool(each.out.isfinite().all()) for each in rank.steps.values()] for rank in ranks]
        counted = {rank.exchange.metrics()["nonfinite_steps"] for rank in ranks}
        assert counted in ({0}, {1}, {2}), f"{code} {how}: {counted}"
        assert all(each.count(False) <= min(counted) for each in finite), f"{code} {how}: {finite}, {counted} counted"
        for rank in ranks:
            last, transient = rank.steps[2], rank.exchange.methods.buffers("transient")
            kept = [of for name, of in last.after.items() if name not in transient] + list(last.states.values())
            tensors = [last.owned, *(each for of in kept for each in of.values())]
            assert all(bool(each.isfinite().all()) for each in tensors), f"{code} {how}"


def test_what_fits_into_16_bits_counts_and_what_does_not_is_told() -> None:
    for largest, steps in ((65504.0, 0), (65520.0, 1)):
        gradient = torch.zeros(N)
        gradient[PLACES["a.weight"].start] = largest
        ranks = exchange_in_threads(FP16(), 2, 1, lambda *_, x=gradient: x, strategy="allgather")
        for rank in ranks:
            assert rank.exchange.metrics()["nonfinite_steps"] == steps
            assert bool(rank.steps[0].out.isfinite().all()) == (steps == 0)
