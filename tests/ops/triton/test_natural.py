import pytest
import torch

from gradwire.compressors.levels.ops import natural_add_decoded, natural_encode, natural_encode_feedback
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check

roundings = pytest.mark.parametrize("rounding", ["random", "nearest"])
# Blocks of a part of a program, of several programs' parts.
shapes = pytest.mark.parametrize(("n", "block"), [(0, 16), (1, 16), (33, 16), (1000, 48), (5000, 2064)])


def _payload(n, block):
    return {"bases": ((-(-n // block),), torch.uint8), "codes": ((n,), torch.uint8)}


def _settings(rounding, block):
    return {"rounding": rounding, "block": block, "key": -12345678901234567, "step": 2**31 + 5}


@pairwise
@shapes
@roundings
def test_encode(on, n, block, rounding):
    for finite in (True, False):
        x = {"x": gradient(n, 1, finite=finite)}
        check(Case(natural_encode, x, _payload(n, block), _settings(rounding, block)), on, n % 3)


@pairwise
@shapes
@roundings
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, block, rounding, watched):
    for finite in (True, False):
        outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)} | _payload(n, block)
        if watched:
            outputs["status"] = torch.tensor([2], dtype=torch.int32)
        check(Case(natural_encode_feedback, {}, outputs, _settings(rounding, block)), on, n % 3)


@pairwise
@shapes
def test_add_decoded(on, n, block):
    for ranks in (0, 1, 3):
        payload = {"bases": random_bytes((ranks, -(-n // block)), 4), "codes": random_bytes((ranks, n), 5)}
        case = Case(natural_add_decoded, payload, {"out": gradient(n, 6)}, {"block": block, "scale": -1 / 3}, pitch=3)
        check(case, on, n % 3)
