"""One factor a step: the projection, the rounds, and the convergence that docs/methods/convergence.md reports."""

import math
import re

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.contrib.compressors.lowrank.acp_sgd import ACPSGD
from gradwire.errors import ConfigError
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.matrices import DEFICIENT, decoded, deficient, matrix, nearly_rank_3, relative_error


def test_an_even_step_projects_the_rows_and_an_odd_one_the_columns():
    code, x = ACPSGD(rank=2), matrix(12, 9)
    state = code.init_state(x.shape, Key())
    for step in (0, 1):
        payload = code.layout(x.shape).views(code.compress(x, state, Key(step=step)))
        p, q = payload[0].view(2, 12), payload[1].view(2, 9)
        basis = p if step else q
        torch.testing.assert_close(basis @ basis.mT, torch.eye(2), rtol=0, atol=1e-6)
        out = torch.zeros_like(x)
        code.add_decoded(payload, out)
        projected = basis.mT @ basis @ x if step else x @ basis.mT @ basis
        torch.testing.assert_close(out, projected, rtol=1e-5, atol=1e-5)


def test_it_finds_the_dominant_directions_within_a_few_steps():
    code, x = ACPSGD(rank=3), nearly_rank_3(60, 40)
    state = code.init_state(x.shape, Key())
    errors = [relative_error(x, decoded(code, x, state, step)) for step in range(4)]
    best = float(torch.linalg.svdvals(x.double())[3:].norm() / x.double().norm())
    assert errors[0] > 0.8
    assert errors[3] < 1.1 * best < 0.06


def test_only_one_factor_is_reduced_in_a_step():
    code, x = ACPSGD(rank=2), matrix(12, 9)
    for step in (0, 1, 2):
        payload = code.layout(x.shape).views(torch.zeros(code.layout(x.shape).nbytes, dtype=torch.uint8))
        rounds = code.rounds([x], [payload], [code.init_state(x.shape, Key())], [Key(step=step)])
        assert list(rounds) == [step % 2]
    both = capabilities.traffic(PowerSGD(rank=2), (12, 9))
    assert capabilities.traffic(code, (12, 9)) == 4 * 2 * (12 + 9) / 2 == both / 2


@pytest.mark.parametrize("step", [0, 1])
def test_ranks_decode_the_projection_of_their_mean_and_keep_their_own_rest(step):
    code, ranks = ACPSGD(rank=2), 4
    xs = [[matrix(12, 9, seed=rank)] for rank in range(ranks)]
    keys = [[Key(rank=rank, step=step)] for rank in range(ranks)]
    states = [[code.init_state((12, 9), key[0])] for key in keys]
    payloads = mean_rounds(code, xs, states, keys)
    basis = payloads[0][0][1 - step].view(2, -1)
    for x, payload in [(torch.stack([x for (x,) in xs]).mean(0), payloads[3][0][:2]), (xs[2][0], payloads[2][0][2:])]:
        out = torch.zeros(12, 9)
        code.add_decoded((*payload, *payload), out)
        projected = basis.mT @ basis @ x if step else x @ basis.mT @ basis
        torch.testing.assert_close(out, projected, rtol=1e-5, atol=1e-5)
    kept = xs[2][0].clone()
    capabilities.add_own(code, payloads[2][0], kept, -1.0)
    torch.testing.assert_close(kept, xs[2][0] - out)


@together
@pytest.mark.parametrize("kind", DEFICIENT)
def test_matrices_that_lack_directions(kind):
    x, code = deficient(kind), ACPSGD(rank=3)
    state = code.init_state(x.shape, Key())
    for step in range(2):
        out = decoded(code, x, state, step)
    assert torch.allclose(out, x, rtol=1e-4, atol=1e-4 * float(x.abs().amax()))
    assert all(bool(factor.isfinite().all()) and bool(factor.abs().amax(1).all()) for factor in state.values())


def test_nan_is_seen_and_forgotten_by_the_state():
    code, x = ACPSGD(rank=2), matrix(20, 10)
    x[3, 4] = math.nan
    state = code.init_state(x.shape, Key())
    for step in (0, 1):
        assert bool(decoded(code, x, state, step).isnan().any())
        assert all(bool(factor.isfinite().all()) for factor in state.values())


def test_the_start_is_common_to_the_ranks():
    first, second = (ACPSGD(rank=2).init_state((8, 9), Key(rank=rank, tensor=7)) for rank in (1, 2))
    assert torch.equal(first["p"], second["p"])
    assert torch.equal(first["q"], second["q"])


def test_what_pays():
    code = ACPSGD(rank=4)
    assert capabilities.pays_for(code, (64, 3, 3))
    assert not capabilities.pays_for(code, (1000,))
    assert not capabilities.pays_for(code, (0, 5))
    assert not capabilities.pays_for(code, (8, 8))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"rank": 0}, "ACPSGD.rank must be an integer >= 1, got 0"),
        ({"rank": True}, "ACPSGD.rank must be an integer >= 1, got True"),
        ({"min_compression": 0.5}, "ACPSGD.min_compression must be a finite number >= 1, got 0.5"),
        ({"min_compression": math.inf}, "ACPSGD.min_compression must be a finite number >= 1, got inf"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        ACPSGD(**values)
