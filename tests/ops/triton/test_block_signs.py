import pytest
import torch

from gradwire.compressors.signs import ops
from gradwire.compressors.signs.ops import sign_bytes
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import SIZES, check

CODES = {"scaled_sign": ("scales", 1), "two_means": ("means", 2)}
codes = pytest.mark.parametrize("code", CODES)
# Short and long blocks; several programs.
shapes = pytest.mark.parametrize(
    ("n", "block"), [*((n, 32) for n in SIZES[:-1]), (1000, 96), (5000, 2048), (20011, 128)]
)


def _payload(code, n, block):
    name, each = CODES[code]
    return {name: ((-(-n // block) * each,), torch.float32), "codes": ((sign_bytes(n),), torch.uint8)}


@pairwise
@codes
@shapes
@pytest.mark.parametrize("finite", [True, False])
def test_encode(on, code, n, block, finite):
    x = {"x": gradient(n, 1, finite=finite)}
    check(Case(getattr(ops, f"{code}_encode"), x, _payload(code, n, block), {"block": block}), on, n % 3)


@pairwise
@codes
@shapes
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("finite", [True, False])
def test_encode_feedback(on, code, n, block, watched, finite):
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)} | _payload(code, n, block)
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(getattr(ops, f"{code}_encode_feedback"), {}, outputs, {"block": block}), on, n % 3)


@pairwise
@codes
@shapes
def test_add_decoded(on, code, n, block):
    name, each = CODES[code]
    for ranks in (0, 1, 3):
        levels = gradient(ranks * -(-n // block) * each, 4, finite=False).view(ranks, -(-n // block) * each)
        inputs = {name: levels, "codes": random_bytes((ranks, sign_bytes(n)), 5)}
        arguments = {"block": block, "scale": -1 / 3}
        check(Case(getattr(ops, f"{code}_add_decoded"), inputs, {"out": gradient(n, 6)}, arguments, pitch=4), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", [0, 1, 33, 4097, 20011])
@pytest.mark.parametrize("finite", [True, False])
def test_mean_magnitude(on, n, finite):
    x, mean = gradient(n, 7, finite=finite), {"mean": ((1,), torch.float32)}
    for inputs in ({"x": x}, {"x": x, "residual": gradient(n, 8)}):
        check(Case(ops.mean_magnitude, inputs, mean), on, n % 3)
