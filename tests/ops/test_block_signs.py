"""Signs with levels for each block: every target against the reference, and the sums against exact arithmetic."""

import pytest
import torch

from gradwire.compressors.signs import ops
from gradwire.compressors.signs.ops import mean_magnitude, sign_bytes
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import SIZES, Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

CODES = {"scaled_sign": ("scales", 1), "two_means": ("means", 2)}
BLOCKS = (32, 96, 2048)
codes = pytest.mark.parametrize("code", CODES)


def payload(code, n, block):
    name, each = CODES[code]
    return {name: ((-(-n // block) * each,), torch.float32), "codes": ((sign_bytes(n),), torch.uint8)}


@sweep
@codes
def test_encode(n, threads, offset, code):
    for block in BLOCKS:
        for finite in (True, False):
            x = {"x": gradient(n, 1, finite=finite)}
            case = Case(getattr(ops, f"{code}_encode"), x, payload(code, n, block), {"block": block})
            check_against_reference(case, threads, offset)


@sweep
@codes
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, code, watched):
    for block in BLOCKS:
        for finite in (True, False):
            outputs = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), **payload(code, n, block)}
            arguments = {"block": block}
            if watched:
                outputs["status"] = torch.tensor([2], dtype=torch.int32)
            else:
                arguments["status"] = None
            case = Case(getattr(ops, f"{code}_encode_feedback"), {}, outputs, arguments)
            check_against_reference(case, threads, offset)


@sweep
@codes
@pytest.mark.parametrize("ranks", [0, 1, 9])
def test_add_decoded(n, threads, offset, code, ranks):
    name, each = CODES[code]
    for block in BLOCKS:
        levels = gradient(ranks * -(-n // block) * each, 4, finite=False).view(ranks, -(-n // block) * each)
        inputs = {name: levels, "codes": random_bytes((ranks, sign_bytes(n)), 5)}
        arguments = {"block": block, "scale": -1 / 3}
        case = Case(getattr(ops, f"{code}_add_decoded"), inputs, {"out": gradient(n, 6)}, arguments, pitch=4)
        check_against_reference(case, threads, offset)


@sweep
def test_mean_magnitude(n, threads, offset):
    for finite in (True, False):
        x, mean = gradient(n, 7, finite=finite), {"mean": ((1,), torch.float32)}
        for inputs in ({"x": x}, {"x": x, "residual": gradient(n, 8)}):
            check_against_reference(Case(mean_magnitude, inputs, mean), threads, offset)


@together
@pytest.mark.parametrize("n", SIZES)
def test_sums_are_near_the_exact_ones(n):
    x, mean, scales = torch.randn(n), torch.empty(1), torch.empty(-(-n // 64))
    bits = torch.empty(sign_bytes(n), dtype=torch.uint8)
    mean_magnitude(x, mean)
    assert mean.item() == pytest.approx(float(x.double().abs().sum()) / max(n, 1), rel=1e-6)
    ops.scaled_sign_encode(x, scales, bits, 64)
    exact = torch.stack([part.double().abs().mean() for part in x.split(64)]) if n else torch.empty(0)
    torch.testing.assert_close(scales.double(), exact.double(), rtol=1e-6, atol=0)


def test_threads_do_not_change_a_sum():
    x, results = gradient(300_000, 9), []
    for threads in (1, 2):
        mean = torch.empty(1)
        with torch_threads(threads):
            mean_magnitude(x.clamp(-9, 9), mean)
        results.append(mean.item())
    assert results[0] == results[1]


@together
@codes
def test_a_sum_that_overflows_is_reported(code):
    grad, residual, status = torch.full((64,), 3e38), torch.zeros(64), torch.zeros(1, dtype=torch.int32)
    levels, bits = torch.empty(2 * CODES[code][1]), torch.empty(8, dtype=torch.uint8)
    getattr(ops, f"{code}_encode_feedback")(grad, residual, levels, bits, 32, status)
    assert levels.isinf().any()
    assert status.item() == 1
    assert grad.eq(0).all()


@together
@codes
@pytest.mark.parametrize("block", [0, 16, 48, 131072])
def test_a_wrong_block_is_named(code, block):
    levels, bits = torch.empty(CODES[code][1]), torch.empty(4, dtype=torch.uint8)
    message = rf"^{code}_encode.block must be a multiple of 32 from 32 to 65536, got {block}$"
    with pytest.raises(ConfigError, match=message):
        getattr(ops, f"{code}_encode")(torch.ones(32), levels, bits, block)


@together
@codes
def test_ranks_of_levels_and_codes_must_agree(code):
    each, message = CODES[code][1], rf"^{code}_add_decoded.codes must be a torch.uint8 tensor of shape \(3, 4\) with .*"
    with pytest.raises(ConfigError, match=message + r"got torch.uint8 \(2, 4\) "):
        getattr(ops, f"{code}_add_decoded")(
            torch.ones(3, each), torch.zeros(2, 4, dtype=torch.uint8), torch.zeros(32), 32, 1.0
        )
