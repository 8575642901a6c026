import pytest
import torch

from gradwire.compressors.levels.ops import qsgd_add_decoded, qsgd_encode, qsgd_encode_feedback
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import SIZES, check

STREAM = {"key": -12345678901234567, "step": 2**31 + 5}
SMALL = [(n, bits, block) for n in SIZES[:-1] for bits, block in ((2, 16), (4, 528), (8, 16))]
# Odd widths; several blocks for each program; blocks of several parts; many programs.
SHAPES = [*SMALL, (1000, 3, 48), (1000, 7, 48), (5000, 4, 2064), (5000, 5, 65536), (20011, 4, 512)]
shapes = pytest.mark.parametrize(("n", "bits", "block"), SHAPES)


def _payload(n, bits, block):
    return {"norms": ((-(-n // block),), torch.float32), "codes": ((-(-n * bits // 8),), torch.uint8)}


def _settings(bits, block, norm="linf"):
    return {"bits": bits, "block": block, "norm": norm, **STREAM}


@pairwise
@shapes
@pytest.mark.parametrize("finite", [True, False])
def test_encode(on, n, bits, block, finite):
    x = {"x": gradient(n, 1, finite=finite)}
    check(Case(qsgd_encode, x, _payload(n, bits, block), _settings(bits, block)), on, n % 3)


@pairwise
@shapes
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("finite", [True, False])
def test_encode_feedback(on, n, bits, block, watched, finite):
    outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)} | _payload(n, bits, block)
    if watched:
        outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(qsgd_encode_feedback, {}, outputs, _settings(bits, block)), on, n % 3)


@pairwise
@shapes
def test_add_decoded(on, n, bits, block):
    for ranks in (0, 1, 3):
        norms = gradient(ranks * -(-n // block), 4, finite=False).abs().view(ranks, -(-n // block))
        payload = {"norms": norms, "codes": random_bytes((ranks, -(-n * bits // 8)), 5)}
        arguments = {"bits": bits, "block": block, "scale": -1 / 3}
        check(Case(qsgd_add_decoded, payload, {"out": gradient(n, 6)}, arguments, pitch=3), on, n % 3)


@pairwise
@pytest.mark.parametrize("n", [1, 33, 1000])
def test_fewer_levels_and_a_smaller_decoded_value(on, n):
    form = _settings(4, 48) | {"levels": 5}
    check(Case(qsgd_encode, {"x": gradient(n, 1)}, _payload(n, 4, 48), form), on)
    outputs = {"grad": gradient(n, 2), "residual": gradient(n, 3)} | _payload(n, 4, 48)
    check(Case(qsgd_encode_feedback, {}, outputs, form | {"shrink": 0.3}), on)
    payload = {"norms": gradient(2 * -(-n // 48), 4).abs().view(2, -1), "codes": random_bytes((2, -(-n // 2)), 5)}
    arguments = {"bits": 4, "block": 48, "scale": -1 / 3, "levels": 5}
    check(Case(qsgd_add_decoded, payload, {"out": gradient(n, 6)}, arguments), on)


@pairwise
@pytest.mark.parametrize("block", [16, 528, 2064, 65536])
def test_the_largest_element_may_be_the_last_of_its_block(on, block):
    x = gradient(5000, 1).clamp(-1, 1)
    x[block - 1 :: block] = 3.0
    x[-1] = 3.0
    check(Case(qsgd_encode, {"x": x}, _payload(5000, 4, block), _settings(4, block)), on)


FORMS = [("l2", "uniform"), ("l2", "powers"), ("linf", "powers")]


@pairwise
@pytest.mark.parametrize(("n", "bits", "block"), [*SMALL, (1000, 3, 48), (5000, 4, 2064)])
@pytest.mark.parametrize(("norm", "grid"), FORMS)
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1e25, 1e-25])
def test_encode_with_lengths_and_powers(on, n, bits, block, norm, grid, finite, factor):
    x, form = gradient(n, 1, finite=finite).clamp(-9, 9) * factor, _settings(bits, block, norm) | {"grid": grid}
    check(Case(qsgd_encode, {"x": x}, _payload(n, bits, block), form), on, n % 3)
    outputs = {"grad": x, "residual": gradient(n, 3).clamp(-9, 9) * factor} | _payload(n, bits, block)
    outputs["status"] = torch.tensor([2], dtype=torch.int32)
    check(Case(qsgd_encode_feedback, {}, outputs, form | {"shrink": 0.3}), on, n % 3)


@pairwise
@shapes
def test_powers_are_decoded(on, n, bits, block):
    norms = gradient(2 * -(-n // block), 4, finite=False).abs().view(2, -(-n // block))
    payload = {"norms": norms, "codes": random_bytes((2, -(-n * bits // 8)), 5)}
    arguments = {"bits": bits, "block": block, "scale": -1 / 3, "grid": "powers"}
    check(Case(qsgd_add_decoded, payload, {"out": gradient(n, 6)}, arguments, pitch=3), on, n % 3)


@pairwise
@pytest.mark.parametrize("magnitude", [2.0**-121, 2.0**-120, 1e-45, 3.4e38])
def test_norms_at_the_edges(on, magnitude):
    x = {"x": gradient(64, 7).clamp(-1, 1) * magnitude}
    check(Case(qsgd_encode, x, _payload(64, 4, 16), _settings(4, 16)), on)


def test_negative_zeros_keep_their_sign_in_the_residual(on):
    outputs = {"grad": torch.full((40,), -0.0), "residual": torch.full((40,), -0.0)} | _payload(40, 4, 16)
    check(Case(qsgd_encode_feedback, {}, outputs, _settings(4, 16)), on)
