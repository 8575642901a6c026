"""One norm for the whole tensor, and levels that are powers of two: every target against the reference."""

import pytest
import torch

from gradwire.compressors.levels.ops import (
    moments,
    moments_feedback,
    moments_norm,
    qsgd_add_decoded,
    qsgd_encode,
    qsgd_encode_feedback,
    round_encode,
    round_keep,
)
from gradwire.contrib.compressors.levels.ops import sum_words, sums_add_decoded, sums_encode
from gradwire.contrib.compressors.transforms.ops import block_norms
from gradwire.errors import ConfigError
from tests.cases import pairwise, together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep

STREAM = {"key": -3, "step": 2**40 + 1}
FORMS = ((2, 1), (4, 5), (5, 15), (8, 127))
POWERS = [(bits, block, norm) for bits in range(2, 9) for block, norm in ((16, "linf"), (512, "l2"))]


def table(n):
    return (4 * -(-n // 4096),), torch.float32


def codes(n, bits):
    return (-(-n * bits // 8),), torch.uint8


@sweep
@pytest.mark.parametrize("centred", [True, False])
def test_moments(n, threads, offset, centred):
    for finite in (True, False):
        case = Case(moments, {"x": gradient(n, 1, finite=finite)}, {"table": table(n)}, {"centred": centred})
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("watched", [True, False])
def test_moments_feedback(n, threads, offset, watched):
    for finite in (True, False):
        written = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), "table": table(n)}
        arguments = {"centred": finite}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        else:
            arguments["status"] = None
        check_against_reference(Case(moments_feedback, {}, written, arguments), threads, offset)


@together
@pytest.mark.parametrize("n", [1, 17, 4096, 4097, 3 * 4096 + 5, 70000])
@pytest.mark.parametrize(("kind", "factor"), [("largest", 0.5), ("length", 1.0), ("clipped", 2.5), ("clipped", 0.0)])
def test_the_norm_of_all_segments(n, kind, factor):
    for number, scale in enumerate((1.0, 1e-30, 1e30, 0.0)):
        x, rows = gradient(n, number + 1) * scale, torch.empty(4 * -(-n // 4096))
        moments(x, rows, kind == "clipped" and factor > 0)
        for value in (None, float("inf"), float("nan")):
            if value is not None:
                x[n // 2] = value
                moments(x, rows, kind == "clipped" and factor > 0)
            arguments = {"kind": kind, "factor": factor, "n": n}
            check_against_reference(
                Case(moments_norm, {"table": rows}, {"norm": ((1,), torch.float32)}, arguments), 1, 0
            )


@pairwise
@pytest.mark.parametrize("scale", [1e-43, 1e-30, 1e-20, 1e20, 1e30, 5e37])
def test_squares_that_vanish_or_overflow(scale):
    for n in (5, 33, 5000):
        x, grad = gradient(n, 1) * scale, {"grad": gradient(n, 2) * scale, "residual": gradient(n, 3) * scale}
        for centred in (True, False):
            check_against_reference(Case(moments, {"x": x}, {"table": table(n)}, {"centred": centred}), 1, 1)
            case = Case(moments_feedback, {}, {**grad, "table": table(n)}, {"centred": centred, "status": None})
            check_against_reference(case, 1, 0)
        for block in (16, 512):
            norms = {"norms": ((-(-n // block),), torch.float32)}
            check_against_reference(Case(block_norms, {"x": x}, norms, {"block": block}), 1, 1)


def test_a_long_range_is_worked_through_in_parts():
    n, given, arguments = 150_001, torch.tensor([2.0]), {"bits": 3, "levels": 3, **STREAM}
    inputs = {"x": gradient(n, 1), "norm": given}
    check_against_reference(Case(round_encode, inputs, {"codes": codes(n, 3)}, arguments), 1, 1)
    written = {"residual": gradient(n, 1), "codes": codes(n, 3)}
    case = Case(round_keep, {"norm": given}, written, {"shrink": 0.7, **arguments})
    check_against_reference(case, 1, 1)


@sweep
def test_round(n, threads, offset):
    for bits, levels in FORMS if n <= 1000 else FORMS[:1]:
        for norm in (2.0, 0.0, float("inf"), float("nan")) if n <= 1000 else (2.0,):
            given, arguments = torch.tensor([norm]), {"bits": bits, "levels": levels, **STREAM}
            inputs = {"x": gradient(n, 1), "norm": given}
            case = Case(round_encode, inputs, {"codes": codes(n, bits)}, arguments)
            check_against_reference(case, threads, offset)
            written = {"residual": gradient(n, 1), "codes": codes(n, bits)}
            case = Case(round_keep, {"norm": given}, written, {"shrink": 0.7, **arguments})
            check_against_reference(case, threads, offset)


@sweep
def test_powers(n, threads, offset):
    for bits, block, norm in POWERS if n <= 33 else [(4, 1024, "l2")]:
        arguments = {"bits": bits, "block": block, "norm": norm, "grid": "powers", **STREAM}
        written = {"norms": ((-(-n // block),), torch.float32), "codes": codes(n, bits)}
        case = Case(qsgd_encode, {"x": gradient(n, 1)}, written, arguments)
        check_against_reference(case, threads, offset)
        written = {"grad": gradient(n, 2), "residual": gradient(n, 3), **written}
        case = Case(qsgd_encode_feedback, {}, written, {"shrink": 0.3, **arguments})
        check_against_reference(case, threads, offset)
        norms = gradient(2 * -(-n // block), 4).abs().clamp(max=1e30).view(2, -1) if n else torch.zeros(2, 0)
        inputs = {"norms": norms, "codes": random_bytes((2, -(-n * bits // 8)), 5)}
        arguments = {"bits": bits, "block": block, "scale": -1 / 3, "grid": "powers"}
        check_against_reference(
            Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8), threads, offset
        )


@pairwise
@pytest.mark.parametrize("grid", ["uniform", "powers"])
def test_more_ranks_than_have_their_products_at_once(grid):
    n, ranks, block = 3000, 35, 512
    for bits in (2, 3, 4, 5):
        norms = gradient(ranks * -(-n // block), 4).abs().clamp(max=1e30).view(ranks, -1)
        inputs = {"norms": norms, "codes": random_bytes((ranks, -(-n * bits // 8)), 5)}
        arguments = {"bits": bits, "block": block, "scale": -1 / 3, "grid": grid}
        check_against_reference(Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments), 1, 1)


@sweep
def test_fewer_levels_and_one_long_block(n, threads, offset):
    block = max(16, -(-n // 16) * 16)
    inputs = {"norms": torch.ones(3, -(-n // block)), "codes": random_bytes((3, -(-n * 4 // 8)), 5)}
    arguments = {"bits": 4, "block": block, "scale": 0.3, "levels": 5}
    case = Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8)
    check_against_reference(case, threads, offset)
    written = {"norms": ((-(-n // 512),), torch.float32), "codes": codes(n, 4)}
    arguments = {"bits": 4, "block": 512, "norm": "linf", "levels": 5, **STREAM}
    check_against_reference(Case(qsgd_encode, {"x": gradient(n, 1)}, written, arguments), threads, offset)


def test_equal_elements_have_no_spread():
    rows = torch.empty(8)
    moments(torch.full((5000,), 0.3), rows, centred=True)
    assert rows.view(2, 4)[:, 2:].eq(0).all()


@together
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"levels": 8}, "levels must be an integer from 0 to 7, got 8"),
        ({"grid": "linear"}, "grid must be 'uniform' or 'powers', got 'linear'"),
    ],
)
def test_a_wrong_form_is_named(changed, message):
    valid = {"bits": 4, "block": 16, "norm": "linf", "key": 1, "step": 0}
    with pytest.raises(ConfigError, match=f"^qsgd_encode.{message}$"):
        qsgd_encode(torch.ones(16), torch.empty(1), torch.empty(8, dtype=torch.uint8), **valid | changed)


def test_no_levels_are_no_grid():
    with pytest.raises(ConfigError, match=r"^round_encode.levels must be an integer from 1 to 7, got 0$"):
        round_encode(torch.ones(16), torch.ones(1), torch.empty(8, dtype=torch.uint8), 4, 0, 1, 0)


@sweep
def test_sums_of_levels(n, threads, offset):
    for levels, world in ((7, 3), (127, 1), (7, 19), (1, 0), (3, -1)):
        written = {"codes": ((sum_words(n),), torch.int32)}
        case = Case(sums_encode, {"own": random_bytes((n,), 5)}, written, {"levels": levels})
        check_against_reference(case, threads, offset)
        words = random_bytes((4 * sum_words(n),), 5).view(torch.int32)
        words[-1:] = world
        inputs = {"norm": torch.full((min(n, 1),), 2.5), "codes": words}
        case = Case(sums_add_decoded, inputs, {"out": gradient(n, 6)}, {"levels": levels, "scale": -1 / 3})
        check_against_reference(case, threads, offset)
