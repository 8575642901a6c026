"""Rotated blocks: whole ones, what is left behind them cut at powers of two, and sums in the order of 16 lanes."""

import pytest
import torch

from gradwire.compressors.transforms._eden import blocks_of, code_bytes
from gradwire.compressors.transforms.ops import eden_add_decoded, eden_encode
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.test_eden import decoded, seed
from tests.ops.triton.checks import check

# A part of the smallest block, whole ones, and a rest that is cut at several powers of two.
SIZES = (0, 1, 63, 129, 193, 700, 1100)
FORMS = (
    (64, 1, 64, 1),
    (64, 4, 16, 1),
    (256, 2, 256, 1),
    (1024, 3, 256, 1),
    (64, 8, 64, 64),
    (256, 8, 64, 32),
    (1024, 8, 1024, 16),
)

forms = pytest.mark.parametrize("form", FORMS)
sizes = pytest.mark.parametrize("n", SIZES)
factors = pytest.mark.parametrize("factor", [1.0, 1e37, 1e-30, 1e-38])
finite_or_not = pytest.mark.parametrize("finite", [True, False])


@pairwise
@sizes
@forms
@factors
@finite_or_not
def test_eden_encode(on, n, form, factor, finite):
    block, bits, sent, group = form
    x = gradient(n, 1, finite=finite).clamp(-9, 9) * factor
    written = {
        "scales": ((blocks_of(n, block),), torch.float32),
        "codes": ((code_bytes(n, *form),), torch.uint8),
    }
    arguments = {"block": block, "bits": bits, "sent": sent, "group": group}
    check(Case(eden_encode, {"x": x, "seed": seed(n)}, written, arguments), on, n % 3)


@pairwise
@sizes
@forms
@pytest.mark.parametrize("special", [1.0, float("inf"), float("nan"), 3e38])
@pytest.mark.parametrize("ranks", [1, 3])
def test_eden_add_decoded(on, n, form, special, ranks):
    block, bits, sent, group = form
    arguments = {"block": block, "bits": bits, "sent": sent, "scale": -1 / 3, "group": group}
    inputs = decoded(n, special, ranks, *form)
    check(Case(eden_add_decoded, inputs, {"out": gradient(n, 6).clamp(-9, 9)}, arguments, pitch=3), on, n % 3)
