"""Unbiased spectral sparsification: the probabilities, the variance, and what the authors' code gets wrong."""

import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.lowrank.atomo import Atomo, _chances, _directions
from gradwire.errors import ConfigError, WireError
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.matrices import matrix


def spectrum(sizes: list[float], m: int = 16, length: int = 12) -> torch.Tensor:
    u, _, v = torch.linalg.svd(matrix(m, length).double(), full_matrices=False)
    count = len(sizes)
    return (u[:, :count] * torch.tensor(sizes).double() @ v[:count]).float()


def atoms(code: Atomo, x: torch.Tensor, step: int) -> int:
    return int(code.layout(x.shape).views(code.compress(x, None, Key(step=step)))[1])


def best_chances(sizes: list[float], budget: float) -> list[float]:
    """By bisection on c of sum min(1, c l) = budget."""
    low, high = 0.0, 1e9
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if sum(min(1.0, c * size) for size in sizes) < budget else (low, c)
    return [min(1.0, c * size) for size in sizes]


@together
@pytest.mark.parametrize("budget", [0.5, 1.0, 2.5, 4.0, 6.0])
@pytest.mark.parametrize("sizes", [[1.0] * 6, [9.0, 3.0, 1.0, 0.5, 0.2, 0.1], [100.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
def test_the_chances_are_the_best_of_their_sum(sizes, budget):
    chances = _chances(torch.tensor(sizes, dtype=torch.float64), budget)
    assert chances.tolist() == pytest.approx(best_chances(sizes, budget), abs=1e-6)
    assert float(chances.sum()) == pytest.approx(budget)


def test_the_chances_of_nothing_are_zero_and_of_a_large_budget_one():
    assert _chances(torch.zeros(3, dtype=torch.float64), 2.0).tolist() == [0.0, 0.0, 0.0]
    assert _chances(torch.tensor([2.0, 1.0], dtype=torch.float64), 5.0).tolist() == [1.0, 1.0]


def test_the_number_of_atoms_is_the_budget_on_average_and_sometimes_none():
    x = spectrum([1.0] * 8)
    counts = [atoms(Atomo(budget=1.0), x, step) for step in range(400)]
    assert sum(counts) / 400 == pytest.approx(1.0, abs=0.2)
    assert counts.count(0) / 400 == pytest.approx((1 - 1 / 8) ** 8, abs=0.08), "an empty draw was drawn again"


def test_the_variance_is_that_of_the_formula():
    sizes = [4.0, 2.0, 1.0, 0.5]
    x, code = spectrum(sizes), Atomo(budget=1.5)
    expected = sum(size**2 * (1 / p - 1) for size, p in zip(sizes, best_chances(sizes, 1.5), strict=True))
    draws = [code.decompress(code.compress(x, None, Key(step=step)), x.shape) for step in range(400)]
    measured = sum(float((draw - x).square().sum()) for draw in draws) / 400
    assert measured == pytest.approx(expected, rel=0.2)
    assert expected <= capabilities.omega(code, x.numel()) * float(x.square().sum())
    torch.testing.assert_close(torch.stack(draws).mean(0), x, rtol=0, atol=6 * math.sqrt(expected / 400 / 10))


def test_directions_are_found_in_float64_down_to_the_rounding_of_the_gradient():
    x = spectrum([10.0 ** (-i / 2) for i in range(12)])
    basis, sizes = _directions(x.mT)
    assert basis.dtype == sizes.dtype == torch.float64
    expected = torch.linalg.svdvals(x.double() / x.abs().amax())
    torch.testing.assert_close(sizes, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("smallest", [1e-4, 1e-6, 1e-9])
def test_every_direction_may_be_sent_so_that_none_is_lost_for_ever(smallest):
    x = spectrum([1.0, 0.1, 0.01, 1e-3, smallest, smallest])
    for wide in (x.mT, x.mT.contiguous()):
        basis, sizes = _directions(wide)
        chances = _chances(sizes, 3.0)
        assert bool((chances > 0).all())
        parts = basis.mT @ (basis @ wide.double())
        torch.testing.assert_close(parts, wide.double(), rtol=0, atol=1e-12)


def test_a_budget_of_the_full_rank_is_exact():
    x = matrix(30, 6)
    code = Atomo(budget=6)
    torch.testing.assert_close(code.decompress(code.compress(x), x.shape), x, rtol=1e-5, atol=1e-5)


def test_what_is_longer_than_the_matrix_travels_as_its_elements():
    x = matrix(6, 6)
    assert atoms(Atomo(budget=6), x, 0) == -1
    code = Atomo(budget=6)
    used = code.layout(x.shape).views(code.compress(x))[0]
    assert int(used) == 4 * 36
    torch.testing.assert_close(code.decompress(code.compress(x), x.shape), x, rtol=1e-5, atol=1e-5)


def test_ranks_draw_independently():
    x = spectrum([1.0] * 8)
    counts = {tuple(Atomo(budget=2).compress(x, None, Key(rank=rank)).tolist()) for rank in range(4)}
    assert len(counts) == 4


@together
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 13, 30, 100])
def test_vectors_are_folded_whatever_their_length(n):
    x, code = matrix(n, 1).view(-1), Atomo(budget=64)
    torch.testing.assert_close(code.decompress(code.compress(x), x.shape), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_arrives_as_it_is(bad):
    x, code = matrix(9, 7), Atomo()
    x[3, 4] = bad
    out = code.decompress(code.compress(x), x.shape)
    assert not bool(out[3, 4].isfinite())


def test_a_wrong_count_is_refused():
    x, code = matrix(12, 8), Atomo()
    for field, value in [(1, 7), (1, -2), (0, 4)]:
        payload = code.compress(x)
        code.layout(x.shape).views(payload)[field].fill_(value)
        with pytest.raises(WireError, match="atomo payload of"):
            code.decompress(payload, x.shape)


def test_what_pays():
    code = Atomo(budget=3)
    assert capabilities.pays_for(code, (64, 3, 3))
    assert not capabilities.pays_for(code, (4096,))
    assert not capabilities.pays_for(code, (8, 8))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"budget": 0}, "Atomo.budget must be a finite number > 0, got 0"),
        ({"budget": math.inf}, "Atomo.budget must be a finite number > 0, got inf"),
        ({"min_compression": 0.9}, "Atomo.min_compression must be a finite number >= 1, got 0.9"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        Atomo(**values)


def test_a_decoder_refuses_what_its_stream_does_not_hold():
    code, x = Atomo(budget=2), torch.outer(torch.arange(1.0, 17.0), torch.arange(1.0, 13.0))
    used, atoms, stream = code.layout(x.shape).views(code.compress(x))
    for wrong in (atoms + 1, torch.full_like(atoms, 2**30), torch.full_like(atoms, -2)):
        with pytest.raises(WireError, match="atomo payload of"):
            code.add_decoded((used, wrong, stream), torch.zeros(16, 12))
    with pytest.raises(WireError, match="atomo payload of"):
        code.add_decoded((used, atoms, stream[: int(used) - 1]), torch.zeros(16, 12))
