import pytest
import torch

from gradwire.compressors.sparse.ops import (
    mark_beyond,
    mark_drawn,
    tail_moments,
    tail_segments,
    take_beyond,
    take_drawn,
    take_marked,
)
from gradwire.ops.segments import SEGMENT
from tests.cases import pairwise
from tests.ops.harness import Case, gradient
from tests.ops.test_marks import BEYOND, entries, marks
from tests.ops.triton.checks import check

SIZES = (0, 1, 7, 33, 1000, 5001)


def sizes(test):
    return pairwise(pytest.mark.parametrize("n", [*SIZES, SEGMENT + 5])(test))


thresholds = pytest.mark.parametrize(("high", "low"), BEYOND.values(), ids=BEYOND)


def marked(x, high, low):
    bitmap, counts = (torch.empty(*form[0], dtype=form[1]) for form in marks(x.numel()).values())
    mark_beyond.reference(x, bitmap, counts, high, low)
    return {"x": x, "bitmap": bitmap, "counts": counts}


@sizes
@thresholds
def test_beyond(on, n, high, low):
    case = Case(mark_beyond, {"x": gradient(n, 3, finite=False)}, marks(n), {"high": high, "low": low})
    check(case, on, 4 * (n % 3))


@sizes
@pytest.mark.parametrize("s", [0.4999, 1e-30, 3e38])
def test_drawn(on, n, s):
    whole = {f"whole{rest}": value for rest, value in zip(("", "_counts"), marks(n).values(), strict=True)}
    arguments = {"s": s, "key": 0x123456789ABCDEF0, "step": 5}
    check(Case(mark_drawn, {"x": gradient(n, 4, finite=False)}, marks(n) | whole, arguments), on, 4 * (n % 3))


@pairwise
@pytest.mark.parametrize("s", [0.75000006, 0.7500001, 1.0])
def test_what_float32_cannot_decide_is_drawn_as_in_float64(on, s):
    """Elements of one magnitude, s chosen so that u s falls within a rounding error of it for some."""
    whole = {"whole": ((8192,), torch.uint8), "whole_counts": ((1,), torch.int32)}
    arguments = {"s": s, "key": 3, "step": 1}
    check(Case(mark_drawn, {"x": torch.full((65536,), 0.75)}, marks(65536) | whole, arguments), on)


@sizes
@thresholds
def test_take(on, n, high, low):
    inputs = marked(gradient(n, 5, finite=False), high, low)
    k = int(inputs["counts"].sum())
    outputs = {"values": ((k,), torch.float32), "indices": ((k,), torch.int16)}
    check(Case(take_marked, inputs, outputs), on, 4 * (n % 3))


@sizes
def test_take_beyond(on, n):
    for room in (n, n // 7):
        arguments = {"high": 0.5, "low": 0.7}
        check(Case(take_beyond, {"x": gradient(n, 3, finite=False)}, entries(n, room), arguments), on, 4 * (n % 3))


@sizes
def test_take_drawn(on, n):
    for room in (n, n // 7):
        arguments = {"s": 0.4999, "key": 0x123456789ABCDEF0, "step": 5}
        outputs = entries(n, room, "whole_") | entries(n, room)
        check(Case(take_drawn, {"x": gradient(n, 4, finite=False)}, outputs, arguments), on, 4 * (n % 3))


def test_more_marks_than_room_write_nothing_outside(on):
    inputs, memory = marked(gradient(5001, 5), 0.5, 0.5), torch.full((40,), 7.0)
    indices = torch.full((40,), 7, dtype=torch.int16)
    on(take_marked)(**inputs, values=memory[10:30], indices=indices[10:30])
    for buffer in (memory, indices):
        assert bool((buffer[:10] == 7).all())
        assert bool((buffer[30:] == 7).all())


@sizes
@pytest.mark.parametrize(("low", "high", "unit"), [(0.0, float("inf"), 1.0), (0.7, 1e30, 2.0**-40)])
def test_tail_moments(on, n, low, high, unit):
    arguments = {"low": low, "high": high, "unit": unit}
    outputs = {"table": ((4 * tail_segments(n),), torch.float32)}
    check(Case(tail_moments, {"x": gradient(n, 6, finite=False)}, outputs, arguments), on, 4 * (n % 3))
