import pytest
import torch

from gradwire.compressors.sparse.ops import (
    BLOCK,
    capacity,
    threshold_add_decoded,
    threshold_encode,
    threshold_encode_feedback,
)
from gradwire.ops.segments import SEGMENT, segments
from tests.cases import pairwise
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check

SIZES = (0, 1, 2, 7, 33, 1000, 5001)
# With these all three forms occur from 1000 elements on.
THRESHOLDS = (0.0, 0.3, 1.7, 3.1, 1e9)


def sizes(test):
    return pairwise(pytest.mark.parametrize("n", [*SIZES, SEGMENT + 5])(test))


def outputs(n):
    return {"used": ((1,), torch.int32), "stream": ((capacity(n),), torch.uint8)}


def row(n, threshold):
    stream = torch.empty(capacity(n), dtype=torch.uint8)
    threshold_encode.reference(torch.randn(n), torch.empty(1, dtype=torch.int32), stream, threshold)
    return stream


@sizes
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("level", [None, 0.2])
def test_encode(on, n, threshold, finite, level):
    x = {"x": gradient(n, 3, finite=finite)}
    if level is not None:
        x["level"] = torch.tensor([threshold + level])
    check(Case(threshold_encode, x, outputs(n), {"threshold": threshold}), on, 4 * (n % 3))


@sizes
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("level", [None, 0.2])
def test_encode_feedback(on, n, threshold, watched, level):
    written = {"grad": gradient(n, 1), "residual": gradient(n, 2), **outputs(n)}
    # The sum is a NaN that devices would write differently, were there an infinity in both.
    written["residual"][n // 2 : n // 2 + 1] = float("inf")
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    inputs = {} if level is None else {"level": torch.tensor([threshold + level])}
    check(Case(threshold_encode_feedback, inputs, written, {"threshold": threshold}), on, 4 * (n % 3))


@sizes
def test_a_level_that_is_not_a_number_sends_all(on, n):
    inputs = {"level": torch.tensor([float("nan")]), "x": gradient(n, 3, finite=False)}
    check(Case(threshold_encode, inputs, outputs(n), {"threshold": 1e9}), on, 4 * (n % 3))


def test_all_three_forms_were_met():
    assert {row(1000, threshold)[0].item() for threshold in THRESHOLDS} == {0, 1, 2}


@sizes
def test_add_decoded(on, n):
    rows = torch.stack([row(n, threshold) for threshold in THRESHOLDS])
    for length in (capacity(n), 8 + 3 * n):  # A row may end early.
        case = Case(threshold_add_decoded, {"streams": rows[:, :length]}, {"out": gradient(n, 1)}, {"scale": 1 / 3}, 3)
        check(case, on, n % 3)


@pairwise
@pytest.mark.parametrize("form", [0, 1, 3, -1])
@pytest.mark.parametrize("n", [0, 1, 33, 1000])
def test_bytes_from_a_peer_give_what_the_reference_gives(on, n, form):
    for seed, k in enumerate((0, n // 2, n, n + 1, -1, 2**31 - 1)):
        rows = random_bytes((2, capacity(n) - seed), seed) & 0x3F
        rows[:, :8].copy_(torch.tensor([form, k], dtype=torch.int32).view(torch.uint8)[: rows.size(1)])
        check(Case(threshold_add_decoded, {"streams": rows}, {"out": gradient(n, 1)}, {"scale": 1.0}), on)


@pairwise
@pytest.mark.parametrize("counts", [[10, 10], [-5, 20], [2**31 - 1, 2**31 - 1], [-(2**31), 7], [0, 0], [3, 2**31 - 1]])
def test_counts_from_a_peer_cannot_reach_beyond(on, counts):
    n, k = SEGMENT + 30, 20
    places = torch.cat([torch.tensor([0, 7, 29, 31]), torch.linspace(32, SEGMENT - 1, 16).long()])
    low = (((places & 0xFFFF) ^ 0x8000) - 0x8000).to(torch.int16)
    head = torch.tensor([BLOCK, k], dtype=torch.int32), gradient(k, 3), torch.tensor(counts, dtype=torch.int32), low
    stream = torch.cat([part.view(torch.uint8) for part in head])
    assert len(counts) == segments(n)
    check(Case(threshold_add_decoded, {"streams": stream[None]}, {"out": gradient(n, 4)}, {"scale": 1.0}), on)
