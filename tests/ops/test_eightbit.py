"""8-bit codes: every target against the reference, each codebook, blocks and whole tensors."""

import pytest
import torch

from gradwire.compressors.casts.ops import (
    KINDS,
    codebook,
    eightbit_add_decoded,
    eightbit_encode,
    eightbit_encode_feedback,
    scale_count,
)
from gradwire.errors import ConfigError
from tests.cases import pairwise, together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

kinds = pytest.mark.parametrize("kind", KINDS)


def blocks(n):
    return (0, 16, 512) if n <= 1000 else (0, 2048)


def outputs(n, block):
    return {"scales": ((scale_count(n, block),), torch.float32), "codes": ((n,), torch.uint8)}


def moderate(n, seed):
    """Without the values of 1e38 that would leave everything else in the lowest codes."""
    return gradient(n, seed).clamp(-1e9, 1e9) ** 3


INPUTS = {
    "awkward": lambda n: gradient(n, 1),
    "not finite": lambda n: gradient(n, 1, finite=False),
    "moderate": lambda n: moderate(n, 2),
    "denormal": lambda n: torch.full((n,), 1e-41),
}


@sweep
@kinds
@pytest.mark.parametrize("x", INPUTS)
def test_encode(n, threads, offset, kind, x):
    for block in blocks(n):
        case = Case(eightbit_encode, {"x": INPUTS[x](n)}, outputs(n, block), {"kind": kind, "block": block})
        check_against_reference(case, threads, offset)


@sweep
@kinds
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("finite", [True, False])
def test_encode_feedback(n, threads, offset, kind, watched, finite):
    for block in blocks(n):
        arguments = {"kind": kind, "block": block}
        written = {"grad": gradient(n, 2, finite=finite), "residual": moderate(n, 3), **outputs(n, block)}
        if watched:
            written["status"] = torch.tensor([2], dtype=torch.int32)
        else:
            arguments["status"] = None
        check_against_reference(Case(eightbit_encode_feedback, {}, written, arguments), threads, offset)


@pairwise
@kinds
def test_a_long_range_is_worked_through_in_parts(kind):
    n, arguments = 150_001, {"kind": kind, "block": 0}
    case = Case(eightbit_encode, {"x": moderate(n, 2)}, outputs(n, 0), arguments)
    check_against_reference(case, 1, 1)
    written = {"grad": gradient(n, 2), "residual": moderate(n, 3), "status": torch.tensor([2], dtype=torch.int32)}
    case = Case(eightbit_encode_feedback, {}, written | outputs(n, 0), arguments)
    check_against_reference(case, 1, 1)


@sweep
@kinds
@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("fresh", [False, True])
def test_add_decoded(n, threads, offset, kind, ranks, fresh):
    for block in blocks(n):
        scales = gradient(ranks * scale_count(n, block), 4, finite=False).abs().view(ranks, scale_count(n, block))
        inputs = {"scales": scales, "codes": random_bytes((ranks, n), 5)}
        arguments = {"kind": kind, "block": block, "scale": -1 / 3, "fresh": fresh}
        case = Case(eightbit_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8)
        check_against_reference(case, threads, offset)


@pairwise
@kinds
@pytest.mark.parametrize("fresh", [False, True])
def test_more_ranks_than_have_their_steps_at_once(kind, fresh):
    n, ranks = 5000, 70
    inputs = {"scales": gradient(ranks, 4).abs().view(ranks, 1), "codes": random_bytes((ranks, n), 5)}
    arguments = {"kind": kind, "block": 0, "scale": -1 / 3, "fresh": fresh}
    check_against_reference(Case(eightbit_add_decoded, inputs, {"out": gradient(n, 6)}, arguments), 1, 1)


@together
@kinds
def test_every_value_of_a_codebook_has_its_own_code(kind):
    values = codebook(kind, torch.device("cpu"))[:256]
    kept = values.isfinite() & (values != -128)
    x, codes = values[kept].clone(), torch.empty(int(kept.sum()), dtype=torch.uint8)
    eightbit_encode(x, torch.empty(1), codes, kind, 0)
    assert torch.equal(codes, torch.arange(256)[kept].to(torch.uint8))


@together
@kinds
def test_decoded_and_residual_are_the_input(kind):
    n, block = 1000, 64
    grad, residual = gradient(n, 8).clamp(-2, 2), torch.zeros(n)
    scales, codes = torch.empty(scale_count(n, block)), torch.empty(n, dtype=torch.uint8)
    eightbit_encode_feedback(grad, residual, scales, codes, kind, block)
    eightbit_add_decoded(scales[None], codes[None], residual, kind, block, 1.0)
    torch.testing.assert_close(residual, grad, rtol=0, atol=1e-6)


@together
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "e3m4"}, "kind must be 'linear' or 'dynamic' or 'e4m3' or 'e5m2', got 'e3m4'"),
        ({"block": 24}, "block must be a multiple of 16 from 16 to 65536, or 0 for the whole tensor, got 24"),
        ({"block": 131072}, "block must be a multiple of 16 from 16 to 65536, or 0 for the whole tensor, got 131072"),
    ],
)
def test_a_wrong_parameter_is_named(changed, message):
    valid = {"kind": "linear", "block": 16}
    with pytest.raises(ConfigError, match=f"^eightbit_encode.{message}$"):
        eightbit_encode(torch.ones(16), torch.empty(1), torch.empty(16, dtype=torch.uint8), **valid | changed)


def test_ranks_of_scales_and_codes_must_agree():
    for scales, codes in ((3, 2), (2, 3)):
        given = torch.ones(scales, 1), torch.zeros(codes, 16, dtype=torch.uint8), torch.zeros(16)
        with pytest.raises(ConfigError, match=rf"^eightbit_add_decoded.codes must be .* of shape \({scales}, 16\)"):
            eightbit_add_decoded(*given, "e4m3", 16, 1.0)


def test_threads_agree_on_the_scale_of_a_whole_tensor():
    x = gradient(200_000, 7)
    results = []
    for threads in (1, 2):
        scale, codes = torch.empty(1), torch.empty(200_000, dtype=torch.uint8)
        with torch_threads(threads):
            eightbit_encode(x, scale, codes, "dynamic", 0)
        results.append(codes)
    assert torch.equal(*results)
