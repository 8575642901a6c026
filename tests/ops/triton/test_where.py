import pytest
import torch

from gradwire.kernels import begin_sum, copy_where, fill_where, write_codes
from gradwire.kernels.stored import read, row_bytes
from tests.ops.harness import Case, gradient, random_bytes
from tests.ops.triton.checks import check, sizes

WHEN = [None, torch.tensor([False]), torch.tensor([True])]


@sizes
@pytest.mark.parametrize("when", WHEN)
def test_copy_where(on, n, when):
    inputs = {"source": gradient(n, 1, finite=False)} | ({} if when is None else {"when": when})
    check(Case(copy_where, inputs, {"target": gradient(n, 2)}), on, n % 3)


@sizes
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("value", [0.0, float("nan"), 0.3])
def test_fill_where(on, n, when, value):
    inputs = {} if when is None else {"when": when}
    check(Case(fill_where, inputs, {"out": gradient(n, 2)}, {"value": value}), on, n % 3)


@sizes
@pytest.mark.parametrize("when", WHEN[1:])
@pytest.mark.parametrize("kept", [True, False])
def test_begin_sum(on, n, when, kept):
    written = {"out": gradient(n, 1, finite=False)} | ({"residual": gradient(n, 2)} if kept else {})
    given = {} if kept else {"residual": None}
    check(Case(begin_sum, {"bad": when}, written, given), on, n % 3)


@sizes
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("block", [16, 48, 256, 1024])
@pytest.mark.parametrize("finite", [True, False])
def test_write_codes(on, n, when, block, finite):
    inputs = {"values": gradient(n, 1, finite=finite)} | ({} if when is None else {"when": when})
    stored = random_bytes((-(-n // block) * row_bytes(block),), 2)
    # Codes lie in rows of an alignment of four, as a memory makes them.
    check(Case(write_codes, inputs, {"stored": stored}, {"block": block}), on)


@pytest.mark.parametrize("block", [16, 256])
def test_codes_of_the_largest_numbers(on, block):
    largest = torch.finfo(torch.float32).max
    values = torch.tensor([largest, -largest, largest / 127, 1.0]).repeat(block)
    stored = torch.zeros(4 * row_bytes(block), dtype=torch.uint8)
    check(Case(write_codes, {"values": values}, {"stored": stored}, {"block": block}), on)
    on(write_codes)(values=values, stored=stored, block=block)
    assert read(stored.view(-1, row_bytes(block))).isfinite().all()
