import pytest
import torch

from gradwire.compressors.signs.ops import sign_add_decoded, sign_bytes, sign_encode, sign_encode_feedback, sign_vote
from gradwire.kernels import momentum_update
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check, sizes


@sizes
def test_encode(on, n):
    codes = {"codes": ((sign_bytes(n),), torch.uint8)}
    check(Case(sign_encode, {"x": gradient(n, 1, finite=False)}, codes), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)}
    outputs["codes"] = ((sign_bytes(n),), torch.uint8)
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(sign_encode_feedback, {}, outputs), on, n % 3)


@sizes
def test_add_decoded(on, n):
    for ranks in (0, 1, 3):
        codes, out = random_bytes((ranks, sign_bytes(n)), 4), gradient(n, 5, finite=False)
        check(Case(sign_add_decoded, {"codes": codes}, {"out": out}, {"scale": 1 / 3}, pitch=3), on, n % 3)


@sizes
@pytest.mark.parametrize("tie", [1.0, 0.0])
def test_vote(on, n, tie):
    mean = gradient(n, 6, finite=False)
    mean[: n // 2] *= 2.0**-12
    check(Case(sign_vote, {}, {"mean": mean}, {"tie": tie}), on, n % 3)


@sizes
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("watched", [True, False])
def test_momentum(on, n, finite, watched):
    outputs = {"grad": gradient(n, 2, finite=finite), "momentum": gradient(n, 3)}
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(momentum_update, {}, outputs, {"beta": 0.9}), on, n % 3)
