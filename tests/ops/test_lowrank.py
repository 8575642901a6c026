"""Products with thin factors: every target against the reference, bit for bit, whatever the threads."""

import pytest
import torch

from gradwire.compressors.lowrank.ops import (
    lowrank_add_decoded,
    lowrank_left,
    lowrank_left_feedback,
    lowrank_right,
    lowrank_right_feedback,
)
from gradwire.errors import ConfigError
from tests.cases import pairwise, together
from tests.ops.harness import Case, check_against_reference, gradient

# m, L, rank, threads: alone and in groups of rows, several tiles across and down, more ranks than fit into registers.
FORMS = (
    (1, 1, 1, 1),
    (3, 5, 2, 1),
    (4, 16, 3, 1),
    (5, 17, 4, 1),
    (9, 31, 5, 1),
    (8, 256, 16, 1),
    (300, 7, 2, 1),
    (11, 2049, 3, 1),
    (257, 130, 1, 2),
    (520, 65, 6, 2),
    (9, 4100, 4, 2),
    (1, 40000, 2, 2),
)


def factor(size, rank, seed, *, finite=True):
    return gradient(size * rank, seed, finite=finite)


def both(m, length, rank, finite):
    return {"left": factor(m, rank, 3, finite=finite), "right": factor(length, rank, 4, finite=finite)}


def forms(test):
    return pairwise(pytest.mark.parametrize(("m", "length", "rank", "threads"), FORMS)(test))


@forms
def test_products(m, length, rank, threads):
    for finite in (True, False):
        given, x = both(m, length, rank, finite), gradient(m * length, 1, finite=finite)
        left, right = (((rank * size,), torch.float32) for size in (m, length))
        case = Case(lowrank_left, {"x": x, "right": given["right"]}, {"left": left}, {"rank": rank})
        check_against_reference(case, threads, 1)
        case = Case(lowrank_right, {"x": x, "left": given["left"]}, {"right": right}, {"rank": rank})
        check_against_reference(case, threads, 1)


@forms
@pytest.mark.parametrize("watched", [True, False])
def test_products_of_a_sum(m, length, rank, threads, watched):
    for finite in (True, False):
        given, n = both(m, length, rank, True), m * length
        written = {"grad": gradient(n, 1, finite=finite), "residual": gradient(n, 2)}
        status = {"status": torch.tensor([2], dtype=torch.int32)} if watched else {}
        for op, held, solved, size in (
            (lowrank_left_feedback, "right", "left", m),
            (lowrank_right_feedback, "left", "right", length),
        ):
            outputs = written | {solved: ((rank * size,), torch.float32)} | status
            check_against_reference(Case(op, {held: given[held]}, outputs, {"rank": rank}), threads, 2)


@forms
@pytest.mark.parametrize("watched", [True, False])
def test_adding_a_product(m, length, rank, threads, watched):
    for finite in (True, False):
        status = {"status": torch.tensor([2], dtype=torch.int32)} if watched else {}
        written = {"out": gradient(m * length, 1)} | status
        case = Case(lowrank_add_decoded, both(m, length, rank, finite), written, {"rank": rank, "scale": -1 / 3})
        check_against_reference(case, threads, 3)


def test_they_are_the_products():
    generator = torch.Generator().manual_seed(1)
    x, left, right = (torch.randn(size, generator=generator) for size in ((300, 2100), (3, 300), (3, 2100)))
    got_left, got_right, out = torch.empty(3 * 300), torch.empty(3 * 2100), x.clone()
    lowrank_left(x.view(-1), right.view(-1), got_left, 3)
    lowrank_right(x.view(-1), left.view(-1), got_right, 3)
    lowrank_add_decoded(left.view(-1), right.view(-1), out.view(-1), 3, 0.5)
    torch.testing.assert_close(got_left.view(3, 300), right @ x.mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got_right.view(3, 2100), left @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, x + 0.5 * left.mT @ right)


def test_a_matrix_without_elements():
    left = torch.empty(0)
    lowrank_left(torch.empty(0), torch.ones(4), left, 2)
    lowrank_add_decoded(left, torch.ones(4), torch.empty(0), 2, 1.0)
    right = torch.empty(0)
    lowrank_right(torch.empty(0), torch.ones(4), right, 2)
    assert left.numel() == right.numel() == 0
    sums = torch.ones(4)
    lowrank_right(torch.empty(0), torch.empty(0), sums, 2)
    lowrank_left(torch.empty(0), torch.empty(0), left := torch.ones(4), 2)
    assert torch.equal(torch.cat([sums, left]), torch.zeros(8))


@together
@pytest.mark.parametrize("rank", [0, -1, 2.0])
def test_rank_is_a_positive_integer(rank):
    with pytest.raises((ConfigError, RuntimeError), match="rank"):
        lowrank_left(torch.ones(4), torch.ones(2), torch.ones(2), rank)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(
        ConfigError, match=r"^lowrank_left\.x must be m L elements, left 2 m and right 2 L; got 4, 4 and 6"
    ):
        lowrank_left(torch.ones(4), torch.ones(6), torch.ones(4), 2)
