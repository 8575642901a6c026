"""Powers of two: every target against the reference, the carry's probability, blocks that are not numbers."""

import pytest
import torch

from gradwire.compressors.levels.ops import natural_add_decoded, natural_encode, natural_encode_feedback
from gradwire.errors import ConfigError
from tests.cases import together
from tests.ops.harness import Case, check_against_reference, gradient, random_bytes, sweep, torch_threads

roundings = pytest.mark.parametrize("rounding", ["random", "nearest"])


def blocks(n):
    return (16, 528) if n <= 1000 else (2048,)


def outputs(n, block):
    return {"bases": ((-(-n // block),), torch.uint8), "codes": ((n,), torch.uint8)}


def settings(rounding, block):
    return {"rounding": rounding, "block": block, "key": -3, "step": 2**40 + 1}


@sweep
@roundings
def test_encode(n, threads, offset, rounding):
    for block in blocks(n):
        for x in (gradient(n, 1), gradient(n, 1, finite=False), gradient(n, 2).clamp(-1, 1) * 1e-37):
            case = Case(natural_encode, {"x": x}, outputs(n, block), settings(rounding, block))
            check_against_reference(case, threads, offset)


@sweep
@roundings
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, rounding, watched):
    for block in blocks(n):
        for finite in (True, False):
            written = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3), **outputs(n, block)}
            arguments = settings(rounding, block)
            if watched:
                written["status"] = torch.tensor([2], dtype=torch.int32)
            else:
                arguments["status"] = None
            case = Case(natural_encode_feedback, {}, written, arguments)
            check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("ranks", [0, 3])
def test_add_decoded(n, threads, offset, ranks):
    for block in blocks(n):
        inputs = {"bases": random_bytes((ranks, -(-n // block)), 4), "codes": random_bytes((ranks, n), 5)}
        arguments = {"block": block, "scale": -1 / 3}
        case = Case(natural_add_decoded, inputs, {"out": gradient(n, 6)}, arguments, pitch=8)
        check_against_reference(case, threads, offset)


def test_every_byte_of_a_window_decodes_to_its_power():
    codes, out = torch.arange(256, dtype=torch.uint8), torch.zeros(256)
    natural_add_decoded(torch.tensor([[60]], dtype=torch.uint8), codes[None], out, 256, 1.0)
    powers = torch.ldexp(torch.ones(127), torch.arange(1, 128) + 60 - 127)
    assert out[1:128].tolist() == powers.tolist()
    assert out[129:].tolist() == (-powers).tolist()
    assert out[[0, 128]].tolist() == [0.0, 0.0]


def test_threads_do_not_change_the_draw():
    x = gradient(200_000, 7)
    results = []
    for threads in (1, 2):
        bases, codes = torch.empty(98, dtype=torch.uint8), torch.empty(200_000, dtype=torch.uint8)
        with torch_threads(threads):
            natural_encode(x, bases, codes, "random", 2048, 3, 0)
        results.append(codes)
    assert torch.equal(*results)


@together
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounding": "up"}, "rounding must be 'random' or 'nearest', got 'up'"),
        ({"block": 0}, "block must be a multiple of 16 from 16 to 65536, got 0"),
    ],
)
def test_a_wrong_parameter_is_named(changed, message):
    bases, codes = torch.empty(1, dtype=torch.uint8), torch.empty(16, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=f"^natural_encode.{message}$"):
        natural_encode(torch.ones(16), bases, codes, **settings("random", 16) | changed)


def test_ranks_of_bases_and_codes_must_agree():
    bases, codes = torch.zeros(3, 1, dtype=torch.uint8), torch.zeros(2, 16, dtype=torch.uint8)
    refused = r"^natural_add_decoded.codes must be a .* tensor of shape \(3, 16\) .*, got torch.uint8 \(2, 16\)"
    with pytest.raises(ConfigError, match=refused):
        natural_add_decoded(bases, codes, torch.zeros(16), 16, 1.0)
