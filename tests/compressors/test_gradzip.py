"""Alternating ridge regression: the normal equations, the shrinking, and what it has in common with ACP-SGD."""

import copy
import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.lowrank.acp_sgd import ACPSGD
from gradwire.contrib.compressors.lowrank.gradzip import GradZip
from gradwire.errors import ConfigError
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.matrices import DEFICIENT, decoded, deficient, matrix, nearly_rank_3, relative_error


def test_each_half_step_solves_its_normal_equations():
    code, x = GradZip(rank=2, ridge=0.1), matrix(12, 9).double()
    state = code.init_state(x.shape, Key())
    for step in (0, 1):
        payload = code.layout(x.shape).views(code.compress(x.float(), state, Key(step=step)))
        p, r = payload[0].view(2, 12).double(), payload[1].view(2, 9).double()
        held, solved, right = (p, r, x) if step else (r, p, x.mT)
        torch.testing.assert_close(held.norm(dim=1), torch.ones(2).double(), rtol=1e-6, atol=0)
        ridge = 0.1 * torch.eye(2).double()
        torch.testing.assert_close((held @ held.mT + ridge) @ solved, held @ right, rtol=1e-5, atol=1e-5)


@together
@pytest.mark.parametrize("padding", [0, 40, 1 << 20])
@pytest.mark.parametrize("code", [ACPSGD(rank=3), GradZip(rank=3, ridge=0.1)], ids=lambda code: code.name)
def test_factors_are_prepared_together_as_alone(code, padding):
    lengths = (20, 5, 64, 5, 18, 300)
    held = [matrix(3, length, seed) for seed, length in enumerate(lengths)]
    held.append(torch.outer(torch.tensor([1.0, 2.0, -1.0]), matrix(1, 9).view(-1)))
    sent, alone = ([torch.full_like(each, math.nan) for each in held] for _ in range(2))
    before = [each.clone() for each in held]
    found = code.prepare(held, sent, padding)
    for i, each in enumerate(held):
        (expected,) = code.prepare([each], [alone[i]])
        torch.testing.assert_close(found[i], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sent[i], alone[i], rtol=1e-5, atol=1e-5)
        assert torch.equal(each, before[i])


@together
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("rank", [2, 17])
@pytest.mark.parametrize("code", [ACPSGD, GradZip], ids=lambda code: code.name)
def test_a_bucket_gives_what_each_matrix_gives_alone(code, rank, step):
    """Beyond a rank of 16 the products are a BLAS's, of several matrices at once where they lie evenly."""
    code, shapes = code(rank=rank), [(24, 40), (24, 40), (30, 18), (24, 40), (40, 24), (3, 90)]
    flat = matrix(1, sum(math.prod(shape) for shape in shapes)).view(-1)
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    xs = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    keys = [Key(tensor=tensor, step=step) for tensor in range(len(xs))]
    first = [code.init_state(x.shape, key) for x, key in zip(xs, keys, strict=True)]
    together, alone = copy.deepcopy(first), copy.deepcopy(first)
    (payloads,) = mean_rounds(code, [xs], [together], [keys])
    found, own = torch.zeros_like(flat), torch.zeros_like(flat)
    for out, add in ((found, capabilities.add_decoded_each), (own, capabilities.add_own_each)):
        outs = torch.split(out, [x.numel() for x in xs])
        add(code, payloads, [part.view(x.shape) for part, x in zip(outs, xs, strict=True)], 1.0)
    expected = [decoded(code, x, state, step) for x, state in zip(xs, alone, strict=True)]
    torch.testing.assert_close(found, torch.cat([each.view(-1) for each in expected]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own, found)
    for one, other, start in zip(together, alone, first, strict=True):
        for name, factor in one.items():
            torch.testing.assert_close(factor, other[name], rtol=1e-4, atol=1e-4)
        assert not torch.equal(one["q" if step else "p"], start["q" if step else "p"])


def test_the_ridge_shrinks():
    x = matrix(12, 9)
    sizes = [float(decoded(GradZip(rank=2, ridge=ridge), x).norm()) for ridge in (1e-6, 0.01, 0.1, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[3] < 0.7 * sizes[0] < 0.7 * float(x.norm())


def test_without_a_ridge_it_spans_what_acp_sgd_spans():
    x = nearly_rank_3(20, 15)
    zip_state, acp_state = (code.init_state(x.shape, Key()) for code in (GradZip(rank=3), ACPSGD(rank=3)))
    for step in range(3):
        ours = decoded(GradZip(rank=3, ridge=1e-6), x, zip_state, step)
        theirs = decoded(ACPSGD(rank=3), x, acp_state, step)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


def test_a_direction_that_was_missing_comes_back_out_of_the_noise():
    first, second = (torch.outer(matrix(12, 1, seed)[:, 0], matrix(9, 1, seed + 1)[:, 0]) for seed in (0, 2))
    code = GradZip(rank=2, ridge=0.001)
    state = code.init_state((12, 9), Key())
    for step in range(100):
        decoded(code, first + 1e-3 * matrix(12, 9, 10 + step), state, step)
    errors = [relative_error(first + second, decoded(code, first + second, state, step)) for step in range(20)]
    assert errors[0] > 0.1
    assert errors[-1] < 0.05


def test_the_mean_of_the_factors_is_the_factor_of_the_mean():
    code, ranks = GradZip(rank=2, ridge=0.1), 3
    xs = [[matrix(12, 9, seed=rank)] for rank in range(ranks)]
    keys = [[Key(rank=rank)] for rank in range(ranks)]
    payloads = mean_rounds(code, xs, [[code.init_state((12, 9), key[0])] for key in keys], keys)
    out = torch.zeros(12, 9)
    code.add_decoded(payloads[2][0], out)
    torch.testing.assert_close(out, decoded(code, torch.stack([x for (x,) in xs]).mean(0)), rtol=1e-4, atol=1e-5)


def test_feedback_delivers_what_the_ridge_withholds():
    code, x = GradZip(rank=2, ridge=0.5), matrix(12, 8)
    state, residual, total = code.init_state(x.shape, Key()), torch.zeros_like(x), torch.zeros_like(x)
    payload = code.layout(x.shape).views(torch.empty(code.layout(x.shape).nbytes, dtype=torch.uint8))
    for step in range(300):
        code.encode_feedback(x, residual, payload, state, Key(step=step))
        code.add_decoded(payload, total)
    assert torch.allclose(total + residual, 300 * x, rtol=1e-3, atol=1e-2)
    assert relative_error(x, total / 300) < 0.15


@together
@pytest.mark.parametrize("kind", DEFICIENT)
def test_matrices_that_lack_directions(kind):
    x, code = deficient(kind), GradZip(rank=3, ridge=1e-5)
    state = code.init_state(x.shape, Key())
    for step in range(6):
        out = decoded(code, x, state, step)
    assert torch.allclose(out, x, rtol=1e-3, atol=1e-3 * float(x.abs().amax()))
    assert all(bool(factor.isfinite().all()) for factor in state.values())


def test_nan_is_seen_and_forgotten_by_the_state():
    code, x = GradZip(rank=2), matrix(20, 10)
    x[3, 4] = math.nan
    state = code.init_state(x.shape, Key())
    for step in (0, 1):
        assert bool(decoded(code, x, state, step).isnan().any())
        assert all(bool(factor.isfinite().all()) for factor in state.values())


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"rank": 0}, "GradZip.rank must be an integer >= 1, got 0"),
        ({"ridge": 0.0}, "GradZip.ridge must be in [1e-6, 1], got 0.0"),
        ({"ridge": 1.5}, "GradZip.ridge must be in [1e-6, 1], got 1.5"),
        ({"ridge": math.nan}, "GradZip.ridge must be in [1e-6, 1], got nan"),
        ({"min_compression": 0}, "GradZip.min_compression must be a finite number >= 1, got 0"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        GradZip(**values)
