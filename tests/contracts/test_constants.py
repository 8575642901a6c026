"""The constants of the methods: no weaker than published, and no stronger than the worst gradient allows.

That the declared ones hold for every gradient is the contract's affair (``check_omega``, ``check_contraction``). Here
they are those of the literature, and gradients are known on which nothing better could be said.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.bf16 import BF16
from gradwire.compressors.casts.blockwise8 import Blockwise8
from gradwire.compressors.casts.dynamic8 import Dynamic8
from gradwire.compressors.casts.fp8 import FP8
from gradwire.compressors.casts.none import Identity
from gradwire.compressors.levels.natural import Natural
from gradwire.compressors.levels.qsgd import QSGD
from gradwire.compressors.signs.efsignsgd import EFSignSGD
from gradwire.compressors.sparse.topk import TopK
from gradwire.compressors.ternary.terngrad import TernGrad
from gradwire.compressors.wrappers.compose import Compose
from gradwire.contrib.compressors.levels.lpc_svrg import LpcSvrg
from gradwire.contrib.compressors.levels.nuqsgd import NUQSGD
from gradwire.contrib.compressors.signs.onebit_sgd import OneBitSGD
from gradwire.contrib.compressors.sparse.adaptive_sparse import AdaptiveSparse
from gradwire.contrib.compressors.sparse.oktopk import OkTopk
from gradwire.contrib.compressors.sparse.randomk import RandomK
from gradwire.contrib.compressors.ternary.three_lc import ThreeLC
from gradwire.contrib.compressors.transforms.demo import DeMo, _cosines
from gradwire.testing._expect import decode, encode
from gradwire.vocabulary import Key

N = 4096


def of_l2(block: int, s: int) -> float:
    """QSGD: min(B / (4 s^2), sqrt(B) / s)."""
    return min(block / (4 * s * s), math.sqrt(block) / s)


def of_powers(block: int, s: int) -> float:
    """NUQSGD, with y = 2^-s sqrt(B): 1/8 + y^2 / 4, or y - 7/8 from y = 2 on."""
    y = math.sqrt(block) / 2**s
    return 1 / 8 + y * y / 4 if y <= 2 else y - 7 / 8


OMEGA: list[tuple[Compressor, float]] = [
    (Identity(), 0.0),
    (BF16("random"), 2.0**-16),
    (QSGD(bits=4, block=512, norm="l2"), of_l2(512, 7)),
    (QSGD(bits=8, block=1024, norm="l2"), of_l2(1024, 127)),
    (QSGD(bits=2, block=None, norm="l2"), of_l2(N, 1)),
    (QSGD(bits=4, block=512), of_l2(512, 7)),
    (QSGD(bits=2, block=None), of_l2(N, 1)),
    (Natural(), 1 / 8),
    (TernGrad(clip=0), (math.sqrt(N) - 1) / 2),
    (LpcSvrg(bits=4), of_l2(N, 7)),
    (RandomK(ratio=1 / 64, scaled=True), 63.0),
    (AdaptiveSparse(mode="closed", eps=0.3), 0.3),
    (NUQSGD(bits=4, block=1024), of_powers(1024, 6)),
    (NUQSGD(bits=3, block=1024), of_powers(1024, 2)),
]

DELTA: list[tuple[Compressor, float]] = [
    (Identity(), 1.0),
    (BF16(), 1 - 2.0**-16),
    (TopK(ratio=1 / 64), 1 / 64),
    (TopK(ratio=1 / 64, values="bfloat16"), (1 - 2.0**-16) / 64),
    (OkTopk(ratio=1 / 64), 1 / 64),
    (RandomK(ratio=1 / 64), 1 / 64),
    (EFSignSGD(block=1024), 1 / 1024),
    (OneBitSGD(block=1024), 1 / 1024),
    (ThreeLC(sparsity=1.0, block=1024), 1 / 1024),
    (ThreeLC(sparsity=1.5, block=1024), 1.5 * 0.5 / 1024),
    (DeMo(ratio=1 / 64, chunk=64), 1 / 64),
    (Natural(rounding="nearest"), 8 / 9),
    (Natural(), 7 / 8),
    (FP8(), 1 - 2.0**-8 - 1e-3),
    (FP8("e5m2"), 1 - 2.0**-6 - 1e-3),
    (QSGD(bits=4, block=512, norm="l2", scaled=True), 1 / (1 + of_l2(512, 7))),
    (QSGD(bits=2, block=None, scaled=True), 1 / (1 + of_l2(N, 1))),
    (AdaptiveSparse(mode="closed", eps=0.3), 0.7),
    # Qsparse: k / (n (1 + beta)), beta = min(k / s^2, sqrt(k) / s); a block's bound has a 4 in it.
    (Compose(TopK(1 / 64), QSGD(bits=4, block=None, norm="l2", scaled=True)), 1 / 64 / (1 + min(64 / 49, 8 / 7))),
]


@pytest.mark.parametrize(("compressor", "published"), OMEGA, ids=str)
def test_the_variance_factor_is_no_larger_than_published(compressor: Compressor, published: float) -> None:
    assert compressor.unbiased
    assert 0 <= capabilities.omega(compressor, N) <= published * (1 + 1e-12)


@pytest.mark.parametrize(("compressor", "published"), DELTA, ids=str)
def test_the_contraction_constant_is_no_smaller_than_published(compressor: Compressor, published: float) -> None:
    assert capabilities.contraction(compressor)
    assert published * (1 - 1e-12) <= capabilities.delta(compressor, N) <= 1


@pytest.mark.parametrize(
    ("code", "error"), [(Dynamic8(), 0.00704), (Blockwise8("dynamic"), 0.00704), (Blockwise8(), 0.5 / 127)]
)
def test_the_error_of_8_bits_is_within_its_part_of_the_largest(code: Compressor, error: float) -> None:
    x = torch.linspace(-1, 1, 2048)
    off = (decode(code, encode(code, x)[1], x) - x).abs().max()
    assert 0.9 * error < float(off) < error * (1 + 1e-5)


def ones(n: int) -> Tensor:
    return torch.ones(n)


def one(n: int) -> Tensor:
    return torch.eye(1, n)[0]


def constant_frequencies(_n: int) -> Tensor:
    waves = _cosines(64, torch.device("cpu"))
    return (waves.mT @ torch.ones(64, 64) @ waves).contiguous()


def one_among_many(levels: int) -> Callable[[int], Tensor]:
    """(1, t, ..., t), on which rounding to levels of the largest magnitude does worst."""

    def make(n: int) -> Tensor:
        omega = (math.sqrt(1 + (n - 1) / levels**2) - 1) / 2
        x = torch.full((n,), 1 / (2 * levels * (1 + omega)))
        x[0] = 1.0
        return x

    return make


WORST: list[tuple[Compressor, Callable[[int], Tensor]]] = [
    (TopK(ratio=1 / 64), ones),
    (OkTopk(ratio=1 / 64), ones),
    (RandomK(ratio=1 / 64), ones),
    (RandomK(ratio=1 / 64, scaled=True), ones),
    (EFSignSGD(block=4096), one),
    (DeMo(ratio=1 / 64, chunk=64), constant_frequencies),
    (Natural(), lambda n: torch.full((n,), 4 / 3)),
    (Natural(rounding="nearest"), lambda n: torch.full((n,), 1.5)),
    (TernGrad(clip=0), one_among_many(1)),
    (QSGD(bits=4, block=4096), one_among_many(7)),
    (QSGD(bits=2, block=None), one_among_many(1)),
    (LpcSvrg(bits=3), one_among_many(3)),
    (AdaptiveSparse(mode="closed", eps=0.3), ones),
    (BF16(), lambda n: torch.full((n,), 1 + 2.0**-8)),
    (BF16("random"), lambda n: torch.full((n,), 1 + 2.0**-8)),
]


@pytest.mark.parametrize(("compressor", "worst"), WORST, ids=lambda v: str(v) if isinstance(v, Compressor) else "")
def test_the_worst_gradient_attains_the_constant(compressor: Compressor, worst: Callable[[int], Tensor]) -> None:
    x = worst(N)
    claimed = capabilities.omega(compressor, N) if compressor.unbiased else 1 - capabilities.delta(compressor, N)
    draws = 30 if compressor.random else 1
    errors = [
        float((decode(compressor, encode(compressor, x, Key(step=s))[1], x) - x).double().square().sum())
        for s in range(draws)
    ]
    lost = sum(errors) / draws / float(x.double().square().sum())
    assert 0.93 * claimed <= lost <= 1.07 * claimed
