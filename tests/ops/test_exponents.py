"""Powers of two in 4 bits: the kernels against the reference at every density, and decoding of hostile bytes."""

import pytest
import torch

from gradwire.contrib.compressors.sparse.ops import exponent_add_decoded, exponent_encode, mark_beyond
from gradwire.kernels.segments import segments
from tests.cases import pairwise, together
from tests.ops.harness import SIZES, TARGETS, Case, check_against_reference, dispatched, gradient, random_bytes

LEAST = {"nearly all": 2.0**-6, "half": 0.7, "few": 2.5}
LENGTHS = [*SIZES, 131073]


def marked(n, least, seed=3):
    x = gradient(n, seed).clamp_(-3.9, 3.9)
    bitmap, counts = torch.empty(-(-n // 8), dtype=torch.uint8), torch.empty(segments(n), dtype=torch.int32)
    mark_beyond(x, bitmap, counts, least, least)
    return {"x": x, "bitmap": bitmap, "counts": counts}


def stream(n, least, seed):
    inputs = marked(n, least, seed)
    codes = torch.empty(-(-int(inputs["counts"].sum()) // 2), dtype=torch.uint8)
    exponent_encode(**inputs, codes=codes, top=129)
    return torch.cat([inputs["bitmap"], codes])


@pairwise
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("least", LEAST.values(), ids=LEAST)
def test_encode(n, least):
    inputs = marked(n, least)
    size = -(-int(inputs["counts"].sum()) // 2)
    case = Case(exponent_encode, inputs, {"codes": ((size,), torch.uint8)}, {"top": 129})
    check_against_reference(case, 2, 4)


def test_what_is_not_finite_has_the_largest_exponent():
    x = gradient(1000, 4, finite=False)
    bitmap, counts = torch.empty(125, dtype=torch.uint8), torch.empty(1, dtype=torch.int32)
    mark_beyond(x, bitmap, counts, float("inf"), float("inf"))
    outputs = {"codes": ((-(-int(counts) // 2),), torch.uint8)}
    case = Case(exponent_encode, {"x": x, "bitmap": bitmap, "counts": counts}, outputs, {"top": 255})
    check_against_reference(case, 1, 0)


@pairwise
@pytest.mark.parametrize("n", LENGTHS)
def test_add_decoded(n):
    rows = [stream(n, least, seed) for seed, least in enumerate(LEAST.values())]
    used = torch.tensor([[row.numel()] for row in rows], dtype=torch.int32)
    streams = torch.stack([torch.nn.functional.pad(row, (0, int(used.max()) - row.numel()), value=255) for row in rows])
    tops = torch.tensor([[129], [255], [3]], dtype=torch.int32)
    inputs = {"streams": streams, "used": used, "tops": tops}
    check_against_reference(Case(exponent_add_decoded, inputs, {"out": gradient(n, 1)}, {"scale": 0.3}, 8), 2, 4)


@together
@pytest.mark.parametrize("n", [0, 1, 7, 33, 1000, 70000])
def test_hostile_bytes_give_what_the_reference_gives(n):
    for seed in range(12):
        used = torch.tensor([[n // 8 + seed * n // 24], [-1], [1 << 30]], dtype=torch.int32)
        tops = torch.tensor([[seed], [-5], [1000]], dtype=torch.int32)
        inputs = {"streams": random_bytes((3, n // 3 + seed), seed), "used": used, "tops": tops}
        case = Case(exponent_add_decoded, inputs, {"out": gradient(n, 1)}, {"scale": 1.0})
        check_against_reference(case, 2, 0)


def test_marks_beyond_their_counts_write_nothing():
    """Whatever the counts say, no byte outside of the codes is written."""
    n, room = 40000, torch.full((1 << 16,), 7, dtype=torch.uint8)
    bitmap, counts = torch.full((n // 8,), 255, dtype=torch.uint8), torch.tensor([n], dtype=torch.int32)
    if not TARGETS:
        pytest.skip("the C++ extension is not built")
    for target in TARGETS:
        with dispatched(target):
            exponent_encode(torch.ones(n), bitmap, counts, room[1000:1016], 127)
    assert (room[:1000] == 7).all()
    assert (room[1016:] == 7).all()
