"""Elements that exceed a threshold: every target against the reference at every density, and decoding of hostile
bytes."""

import pytest
import torch

from gradwire.contrib.compressors.sparse.ops import (
    capacity,
    threshold_add_decoded,
    threshold_encode,
    threshold_encode_feedback,
)
from tests.cases import pairwise, together
from tests.ops.harness import SIZES, Case, check_against_reference, gradient, random_bytes, sweep

THRESHOLDS = (0.0, 0.3, 1.7, 2.6, 1e9)


def outputs(n):
    return {"used": ((1,), torch.int32), "stream": ((capacity(n),), torch.uint8)}


@sweep
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_encode(n, threads, offset, threshold):
    for finite in (True, False):
        x = gradient(n, 3, finite=finite)
        case = Case(threshold_encode, {"x": x}, outputs(n), {"threshold": threshold})
        check_against_reference(case, threads, 4 * offset)


@sweep
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("watched", [True, False])
def test_encode_feedback(n, threads, offset, threshold, watched):
    written = {"grad": gradient(n, 1), "residual": gradient(n, 2, finite=False), **outputs(n)}
    arguments = {"threshold": threshold} | ({} if watched else {"status": None})
    if watched:
        written["status"] = torch.tensor([2], dtype=torch.int32)
    check_against_reference(Case(threshold_encode_feedback, {}, written, arguments), threads, 4 * offset)


@pairwise
@pytest.mark.parametrize("n", SIZES)
def test_add_decoded(n):
    rows = torch.zeros(len(THRESHOLDS), capacity(n), dtype=torch.uint8)
    for row, threshold in zip(rows, THRESHOLDS, strict=True):
        threshold_encode(gradient(n, 5), torch.empty(1, dtype=torch.int32), row, threshold)
    case = Case(threshold_add_decoded, {"streams": rows}, {"out": gradient(n, 1)}, {"scale": 1 / 3}, 8)
    check_against_reference(case, 2, 4)


@together
@pytest.mark.parametrize("form", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("n", [0, 1, 7, 33, 1000, 70000])
def test_hostile_bytes_give_what_the_reference_gives(n, form):
    for seed in range(20) if n <= 1000 else (0, 1, 5, 8, 9, 13):
        length = int(torch.randint(8, capacity(n) + 9, (), generator=torch.Generator().manual_seed(seed)))
        rows = random_bytes((2, length), seed) & 0x3F
        rows[:, :8].copy_(
            torch.tensor([form, (n * seed // 19, n + 1, -1)[seed % 3]], dtype=torch.int32).view(torch.uint8)
        )
        if seed % 2 and length > 100:
            rows[:, -100:] = 255
        case = Case(threshold_add_decoded, {"streams": rows}, {"out": gradient(n, 1)}, {"scale": 1.0})
        check_against_reference(case, 2, 0)
