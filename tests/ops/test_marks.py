"""Marked elements: every target against the reference, at the edges of thresholds, words and segments."""

import pytest
import torch

from gradwire.contrib.compressors.sparse.ops import (
    mark_beyond,
    tail_moments,
    tail_segments,
    take_beyond,
    take_drawn,
    take_marked,
)
from gradwire.kernels.segments import segments
from tests.cases import pairwise
from tests.ops.harness import SIZES, Case, check_against_reference, gradient, sweep, torch_threads

BEYOND = {"most": (0.1, -5.0), "half": (0.5, 0.5), "few": (2.5, 2.5)}


def marks(n):
    return {"bitmap": ((-(-n // 8),), torch.uint8), "counts": ((segments(n),), torch.int32)}


@sweep
@pytest.mark.parametrize(("high", "low"), BEYOND.values(), ids=BEYOND)
def test_beyond(n, threads, offset, high, low):
    case = Case(mark_beyond, {"x": gradient(n, 3, finite=False)}, marks(n), {"high": high, "low": low})
    check_against_reference(case, threads, 4 * offset)


@pairwise
@pytest.mark.parametrize("n", [*SIZES, 65536, 131072, 131073])
@pytest.mark.parametrize(("high", "low"), BEYOND.values(), ids=BEYOND)
def test_take(n, high, low):
    x = gradient(n, 5)
    bitmap, counts = (torch.empty(*form[0], dtype=form[1]) for form in marks(n).values())
    mark_beyond(x, bitmap, counts, high, low)
    k = int(counts.sum())
    outputs = {"values": ((k,), torch.float32), "indices": ((k,), torch.int16)}
    check_against_reference(Case(take_marked, {"x": x, "bitmap": bitmap, "counts": counts}, outputs), 2, 4)


def entries(n, room, which=""):
    return {
        f"{which}counts": ((segments(n),), torch.int32),
        f"{which}values": torch.full((room,), 7.0),
        f"{which}indices": torch.full((room,), 7, dtype=torch.int16),
    }


@sweep
@pytest.mark.parametrize(("high", "low"), BEYOND.values(), ids=BEYOND)
def test_take_beyond(n, threads, offset, high, low):
    for room in (n, n // 7):
        arguments = {"high": high, "low": low}
        case = Case(take_beyond, {"x": gradient(n, 3, finite=False)}, entries(n, room), arguments)
        check_against_reference(case, threads, 4 * offset)


@sweep
@pytest.mark.parametrize("s", [0.4999, 1e-30, 3e38])
def test_take_drawn(n, threads, offset, s):
    for room in (n, n // 7):
        arguments = {"s": s, "key": 0x123456789ABCDEF0, "step": 5}
        outputs = entries(n, room, "whole_") | entries(n, room)
        case = Case(take_drawn, {"x": gradient(n, 4, finite=False)}, outputs, arguments)
        check_against_reference(case, threads, 4 * offset)


def test_what_float32_cannot_decide_is_drawn_as_in_float64():
    """Elements of one magnitude, s chosen so that u s falls within a rounding error of it for some."""
    n, x = 65536, torch.full((65536,), 0.75)
    for s in (0.75000006, 0.7500001, 1.0):
        case = Case(take_drawn, {"x": x}, entries(n, n, "whole_") | entries(n, n), {"s": s, "key": 3, "step": 1})
        check_against_reference(case, 1, 0)


def test_entries_are_the_same_whoever_finds_them():
    """Three segments and a part, by one thread and by two."""
    x = gradient(200_000, 5)
    found = []
    for threads in (1, 2):
        counts, values, low = torch.empty(4, dtype=torch.int32), torch.zeros(70_000), torch.zeros(70_000).short()
        with torch_threads(threads):
            take_beyond(x, counts, values, low, 1.0, 1.5)
        found.append(torch.cat([counts.float(), values, low.float()]))
    assert torch.equal(*found)
    assert bool(found[0][:4].all())


@sweep
@pytest.mark.parametrize(("low", "high", "unit"), [(0.0, float("inf"), 1.0), (0.7, 1e30, 2.0**-40)])
def test_tail_moments(n, threads, offset, low, high, unit):
    arguments = {"low": low, "high": high, "unit": unit}
    outputs = {"table": ((4 * tail_segments(n),), torch.float32)}
    case = Case(tail_moments, {"x": gradient(n, 6, finite=False)}, outputs, arguments)
    check_against_reference(case, threads, 4 * offset)
