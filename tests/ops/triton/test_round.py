import pytest
import torch

from gradwire.compressors.levels.ops import (
    WHOLE,
    moments,
    moments_feedback,
    moments_norm,
    qsgd_add_decoded,
    round_encode,
    round_keep,
)
from tests.cases import together
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check, sizes

STREAM = {"key": -12345678901234567, "step": 2**31 + 5}
SEGMENT = 4096


def table(n):
    return (4 * -(-n // SEGMENT),), torch.float32


@sizes
@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (5, 11), (8, 127)])
def test_round(on, n, bits, levels):
    codes = ((-(-n * bits // 8),), torch.uint8)
    for norm in (2.0, 0.0, float("inf"), float("nan")) if n <= 33 else (2.0,):
        given, arguments = torch.tensor([norm]), {"bits": bits, "levels": levels, **STREAM}
        check(Case(round_encode, {"x": gradient(n, 1), "norm": given}, {"codes": codes}, arguments), on, n % 3)
        written = {"residual": gradient(n, 1), "codes": codes}
        check(Case(round_keep, {"norm": given}, written, {"shrink": 0.7, **arguments}), on, n % 3)


@sizes
@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("block", [WHOLE, 65536 + 16])
@pytest.mark.parametrize("fresh", [True, False])
def test_one_norm_for_all(on, n, bits, block, fresh):
    inputs = {"norms": torch.tensor([[2.5], [-0.5], [float("inf")]])[:, : min(n, 1)]}
    inputs["codes"] = random_bytes((3, -(-n * bits // 8)), 5)
    arguments = {"bits": bits, "block": block, "scale": 0.3, "levels": 1, "fresh": fresh}
    check(Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8), on, n % 3)


@pytest.mark.parametrize("grid", ["uniform", "powers"])
def test_blocks_longer_than_a_program_have_their_own_norms(on, grid):
    n, block = 2 * (65536 + 16) + 33, 65536 + 16
    inputs = {"norms": torch.tensor([[1.0, 0.5, 3.0], [2.0, 0.0, -1.0]]), "codes": random_bytes((2, -(-n // 2)), 5)}
    arguments = {"bits": 4, "block": block, "scale": 0.3, "grid": grid}
    check(Case(qsgd_add_decoded, inputs, {"out": gradient(n, 6)}, arguments), on)


@sizes
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("factor", [1.0, 1e-43, 5e37])
def test_moments(on, n, centred, factor):
    for finite in (True, False) if factor == 1 else (True,):
        x = gradient(n, 1, finite=finite) * factor
        check(Case(moments, {"x": x}, {"table": table(n)}, {"centred": centred}), on, n % 3)


@sizes
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize(("factor", "finite"), [(1.0, True), (1.0, False), (1e-30, True)])
def test_moments_feedback(on, n, centred, watched, factor, finite):
    written = {"grad": gradient(n, 2, finite=finite) * factor, "residual": gradient(n, 3) * factor, "table": table(n)}
    arguments = {"centred": centred}
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    else:
        arguments["status"] = None
    check(Case(moments_feedback, {}, written, arguments), on, n % 3)


@together
@pytest.mark.parametrize("n", [1, 17, 4096, 4097, 3 * 4096 + 5, 70000])
@pytest.mark.parametrize(("kind", "factor"), [("largest", 0.5), ("length", 1.0), ("clipped", 2.5), ("clipped", 0.0)])
def test_the_norm_of_all_segments(on, n, kind, factor):
    for number, scale in enumerate((1.0, 1e-30, 1e30, 0.0)):
        x, rows = gradient(n, number + 1) * scale, torch.empty(4 * -(-n // SEGMENT))
        for value in (None, float("inf"), float("nan")):
            if value is not None:
                x[n // 2] = value
            moments(x, rows, kind == "clipped" and factor > 0)
            arguments = {"kind": kind, "factor": factor, "n": n}
            check(Case(moments_norm, {"table": rows}, {"norm": ((1,), torch.float32)}, arguments), on)


def test_more_segments_than_are_added_at_once(on):
    n = 2600 * SEGMENT - 7
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4 * 2600, generator=generator).view(-1, 4).abs()
    arguments = {"kind": "clipped", "factor": 0.5, "n": n}
    check(Case(moments_norm, {"table": rows.view(-1)}, {"norm": ((1,), torch.float32)}, arguments), on)
    arguments["kind"] = "length"
    check(Case(moments_norm, {"table": rows.view(-1)}, {"norm": ((1,), torch.float32)}, arguments), on)
