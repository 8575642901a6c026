"""Rotated blocks: whole ones, what is left behind them cut at powers of two, and sums in the order of 16 lanes."""

import pytest
import torch

from gradwire.compressors.transforms._eden import blocks_of, code_bytes
from gradwire.compressors.transforms._thc import coordinates
from gradwire.compressors.transforms.ops import (
    block_norms,
    eden_add_decoded,
    eden_encode,
    thc_add_decoded,
    thc_begin,
    thc_encode,
    thc_keep,
)
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
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
GRIDS = ((16, 15), (64, 1), (256, 15), (1024, 255))
STREAM = {"key": -123456789012, "step": 2**31 + 7}

forms = pytest.mark.parametrize("form", FORMS)
grids = pytest.mark.parametrize("grid", GRIDS)
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


@pairwise
@sizes
@grids
@pytest.mark.parametrize("factor", [1.0, 1e25, 1e-25, 1e-38])
@finite_or_not
def test_block_norms(on, n, grid, factor, finite):
    x = gradient(n, 1, finite=finite).clamp(-9, 9) * factor
    written = {"norms": ((-(-n // grid[0]),), torch.float32)}
    check(Case(block_norms, {"x": x}, written, {"block": grid[0]}), on, n % 3)


def _norms(x, block):
    norms = torch.empty(-(-x.numel() // block))
    block_norms.reference(x, norms, block)
    return norms


def _signs(n):
    return torch.tensor([-5, 2**40])[: 2 * min(n, 1)]


@pairwise
@sizes
@grids
@finite_or_not
def test_thc_encode(on, n, grid, finite):
    block, levels = grid
    x = gradient(n, 1, finite=finite).clamp(-9, 9)
    inputs = {"x": x, "norms": _norms(x, block), "seed": _signs(n)}
    words = coordinates(n, block) // 4 + min(n, 1)
    arguments = {"block": block, "levels": levels, "clip": 2.154, **STREAM}
    check(Case(thc_encode, inputs, {"codes": ((words,), torch.int32)}, arguments), on)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_thc_begin(on, count):
    check(Case(thc_begin, {}, {"seed": ((count,), torch.int64)}, STREAM), on)


@pairwise
@sizes
@grids
@pytest.mark.parametrize("world", [1, 3, 0, 300])
def test_thc_add_decoded(on, n, grid, world):
    block, levels = grid
    codes = random_bytes((4 * (coordinates(n, block) // 4 + min(n, 1)),), 2).view(torch.int32)
    codes[-1:] = world
    inputs = {"norms": _norms(gradient(n, 1).clamp(-9, 9), block), "seed": _signs(n), "codes": codes}
    arguments = {"block": block, "levels": levels, "clip": 2.154, "scale": -1 / 3}
    check(Case(thc_add_decoded, inputs, {"out": gradient(n, 6).clamp(-9, 9)}, arguments), on)


@pytest.mark.parametrize("n", [0, 1, 5003])
def test_thc_keep(on, n):
    codes = random_bytes((4 * n,), 3).view(torch.int32)
    check(Case(thc_keep, {"codes": codes}, {"own": ((n,), torch.int32)}), on, n % 3)
