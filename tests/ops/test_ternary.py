"""Streams of +1, 0 and -1: the kernels against the reference at every density, and decoding of hostile bytes."""

import pytest
import torch

from gradwire.compressors.ternary.ops import (
    capacity,
    ternary_add_decoded,
    ternary_encode,
    twobit_encode,
    twobit_encode_feedback,
)
from gradwire.kernels.codes import code_bytes
from tests.cases import pairwise, together
from tests.ops.harness import SIZES, Case, check_against_reference, gradient, random_bytes, sweep

DENSITIES = (0.0, 1e-4, 0.01, 0.07, 0.2, 0.4, 0.8, 1.0)


def codes(n, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    fired = torch.rand(n, generator=generator) < density
    signs = torch.randint(0, 2, (n,), generator=generator) * 2.0 - 1.0
    out = torch.empty(code_bytes(n, 2), dtype=torch.uint8)
    twobit_encode(signs * fired, out, 0.5)
    return out


def stream(n, density, words=False, seed=0):
    out = torch.empty(capacity(n), dtype=torch.uint8)
    ternary_encode(codes(n, density, seed), torch.empty(1, dtype=torch.int32), out, n, words)
    return out


@together
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_encode(n, words, density):
    outputs = {"used": ((1,), torch.int32), "stream": ((capacity(n),), torch.uint8)}
    case = Case(ternary_encode, {"codes": codes(n, density)}, outputs, {"n": n, "words": words})
    check_against_reference(case, 1, 1)


@pairwise
@pytest.mark.parametrize("n", SIZES)
def test_add_decoded(n):
    rows = torch.stack([stream(n, density, words) for density in DENSITIES for words in (False, True)])
    for steps in ({}, {"steps": torch.rand(len(rows), 1)}):
        inputs, arguments = {"streams": rows, **steps}, {"threshold": 0.3, "scale": 0.5}
        check_against_reference(Case(ternary_add_decoded, inputs, {"out": gradient(n, 1)}, arguments, 3), 2, 1)


@together
@pytest.mark.parametrize("form", [0, 1, 2, 5, 12, 32, 33, 254, 255])
@pytest.mark.parametrize("n", [0, 1, 7, 33, 1000])
def test_hostile_bytes_give_what_the_reference_gives(n, form):
    for seed in range(20):
        length = int(torch.randint(1, capacity(n) + 1, (), generator=torch.Generator().manual_seed(seed)))
        rows = random_bytes((2, length), seed)
        rows[:, 0] = form
        if length > 2 and seed % 2:
            rows[:, 1] = seed
        case = Case(ternary_add_decoded, {"streams": rows}, {"out": gradient(n, 1)}, {"threshold": 1.0, "scale": 1.0})
        check_against_reference(case, 1, 0)


@sweep
def test_strom(n, threads, offset):
    outputs = {"codes": ((code_bytes(n, 2),), torch.uint8)}
    case = Case(twobit_encode, {"x": gradient(n, 1, finite=False)}, outputs, {"threshold": 0.5, "strict": True})
    check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("watched", [True, False])
def test_strom_feedback(n, threads, offset, watched):
    written = {"grad": gradient(n, 1), "residual": torch.zeros(n), "codes": ((code_bytes(n, 2),), torch.uint8)}
    arguments = {"threshold": 0.5, "strict": True} | ({} if watched else {"status": None})
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(twobit_encode_feedback, {}, written, arguments), threads, offset)
