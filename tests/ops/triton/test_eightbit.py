import pytest
import torch

from gradwire.compressors.casts.ops import (
    KINDS,
    eightbit_add_decoded,
    eightbit_encode,
    eightbit_encode_feedback,
    scale_count,
)
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check

kinds = pytest.mark.parametrize("kind", KINDS)
# Blocks of a part of a program, of several programs' parts, and the whole tensor.
SHAPES = [(0, 16), (1, 16), (33, 16), (1000, 48), (5000, 2064), (0, 0), (1, 0), (1000, 0), (5003, 0)]
shapes = pytest.mark.parametrize(("n", "block"), SHAPES)


def _payload(n, block):
    return {"scales": ((scale_count(n, block),), torch.float32), "codes": ((n,), torch.uint8)}


@pairwise
@shapes
@kinds
def test_encode(on, n, block, kind):
    for x in (gradient(n, 1, finite=False), gradient(n, 2).clamp(-1e9, 1e9) ** 3):
        check(Case(eightbit_encode, {"x": x}, _payload(n, block), {"kind": kind, "block": block}), on, n % 3)


@pairwise
@shapes
@kinds
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(on, n, block, kind, watched):
    for finite in (True, False):
        outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)} | _payload(n, block)
        if watched:
            outputs["status"] = torch.tensor([2], dtype=torch.int32)
        check(Case(eightbit_encode_feedback, {}, outputs, {"kind": kind, "block": block}), on, n % 3)


@pairwise
@shapes
@kinds
@pytest.mark.parametrize("fresh", [True, False])
def test_add_decoded(on, n, block, kind, fresh):
    for ranks in (0, 1, 3):
        scales = gradient(ranks * scale_count(n, block), 4, finite=False).abs().view(ranks, scale_count(n, block))
        payload = {"scales": scales, "codes": random_bytes((ranks, n), 5)}
        arguments = {"kind": kind, "block": block, "scale": -1 / 3, "fresh": fresh}
        check(Case(eightbit_add_decoded, payload, {"out": gradient(n, 6)}, arguments, pitch=3), on, n % 3)
