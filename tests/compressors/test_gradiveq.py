"""Principal components of slices: the projection, the refresh, one basis for all ranks, and what stays out of it."""

import copy
import math
import re
from dataclasses import replace

import pytest
import torch

from gradwire.compressors import capabilities
from gradwire.contrib.compressors.lowrank.gradiveq import GradiVeQ
from gradwire.errors import ConfigError
from gradwire.testing.inputs import gaussian
from gradwire.testing.processes import run_ranks
from gradwire.testing.ranks import mean_rounds
from gradwire.vocabulary import Key
from tests.cases import together
from tests.compressors.matrices import decoded, matrix, relative_error
from tests.strategies.methods import run_method


def alike(slices: int, width: int, directions: int, seed: int = 0) -> torch.Tensor:
    """Slices that have few directions in common, end to end."""
    return (matrix(slices, directions, seed) @ matrix(directions, width, 100)).view(-1)


def taught(code: GradiVeQ, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The state after the sampled steps."""
    state = code.init_state(x.shape, Key())
    for step in range(1, code.sampled + 1):
        decoded(code, x, state, step)
    return state


def test_sampled_steps_are_exact_and_the_others_project():
    code, x = GradiVeQ(size=8, components=2, period=10, sampled=2), gaussian(8 * 20 + 3)
    state = code.init_state(x.shape, Key())
    for step in range(1, 25):
        out, basis = decoded(code, x, state, step), state["basis"]
        if (step - 1) % 10 < 2:
            assert torch.equal(out, x)
        else:
            torch.testing.assert_close(out[:160].view(20, 8), x[:160].view(20, 8) @ basis.mT @ basis)
            torch.testing.assert_close(out[160:], basis[:, :3].mT @ (basis[:, :3] @ x[160:]))


def test_the_basis_is_that_of_the_principal_components():
    code, x = GradiVeQ(size=12, components=3, sampled=1), gaussian(12 * 50)
    basis = taught(code, x)["basis"]
    _, _, v = torch.linalg.svd(x.view(50, 12).double(), full_matrices=False)
    torch.testing.assert_close(basis.mT @ basis, (v[:3].mT @ v[:3]).float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(basis @ basis.mT, torch.eye(3), rtol=0, atol=1e-5)


def test_a_bucket_gives_what_each_tensor_gives_alone():
    """Tensors of one shape that lie evenly are multiplied together, with others between them; some are shorter than a
    slice, and one is zero."""
    code = GradiVeQ(size=32, components=4, period=10, sampled=2)
    shapes = [(20, 40), (20, 40), (7, 30), (20, 40), (300,), (20, 40), (5, 5), (20, 40), (6,), (64, 32)]
    sizes, keys = [math.prod(shape) for shape in shapes], [Key(tensor=tensor) for tensor in range(len(shapes))]
    first = [code.init_state(shape, key) for shape, key in zip(shapes, keys, strict=True)]
    together, alone = copy.deepcopy(first), copy.deepcopy(first)
    for step in range(1, 6):
        flat = alike(1, sum(sizes), 1, seed=step) + 0.3 * gaussian(sum(sizes), seed=50 + step)
        flat[-64 * 32 :] = 0.0
        xs = [part.view(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]
        (payloads,) = mean_rounds(code, [xs], [together], [[replace(key, step=step) for key in keys]])
        found, own = torch.zeros_like(flat), torch.zeros_like(flat)
        for out, add in ((found, capabilities.add_decoded_each), (own, capabilities.add_own_each)):
            add(code, payloads, [part.view(x.shape) for part, x in zip(torch.split(out, sizes), xs, strict=True)], 1.0)
        expected = [decoded(code, x, state, step) for x, state in zip(xs, alone, strict=True)]
        torch.testing.assert_close(found, torch.cat([each.view(-1) for each in expected]), rtol=1e-3, atol=1e-3)
        assert torch.equal(own, found)
    for one, other, start in zip(together[:-1], alone[:-1], first[:-1], strict=True):
        torch.testing.assert_close(one["moment"], other["moment"], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one["basis"] @ one["basis"].mT, torch.eye(len(one["basis"])), rtol=0, atol=1e-5)
        assert not torch.equal(one["basis"], start["basis"])


def test_slices_with_few_directions_in_common_arrive():
    code = GradiVeQ(size=32, components=4)
    state = taught(code, alike(40, 32, 4))
    other = alike(40, 32, 4, seed=7)
    assert relative_error(other, decoded(code, other, state, 100)) < 1e-4
    assert relative_error(gaussian(1280), decoded(code, gaussian(1280), state, 100)) > 0.9


def test_the_first_sampled_step_of_a_period_teaches_nothing_unless_it_is_the_only_one():
    flushed, usual = 100 * alike(20, 16, 2, seed=1), gaussian(320)
    code = GradiVeQ(size=16, components=2, sampled=2)
    state = code.init_state((320,), Key())
    decoded(code, flushed, state, 1)
    assert not bool(state["moment"].any())
    decoded(code, usual, state, 2)
    torch.testing.assert_close(
        state["basis"].abs(), taught(GradiVeQ(size=16, components=2, sampled=1), usual)["basis"].abs()
    )


def test_ranks_take_the_basis_of_rank_0():
    code = GradiVeQ(size=8, components=2, sampled=1)
    xs = [[gaussian(80, seed=rank)] for rank in range(3)]
    states = [[code.init_state((80,), Key())] for _ in xs]
    mean_rounds(code, xs, states, [[Key(step=1, rank=rank)] for rank in range(3)])
    own = taught(code, torch.stack([x for (x,) in xs]).mean(0))["basis"]
    for (state,) in states:
        assert torch.equal(state["basis"], states[0][0]["basis"])
        torch.testing.assert_close(state["basis"].abs(), own.abs(), rtol=1e-3, atol=1e-4)


def test_between_real_ranks_the_mean_is_projected_and_all_hold_the_same():
    code = GradiVeQ(size=32, components=8, sampled=1)
    results = run_ranks(3, run_method, code, None, None, 3)
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result["outputs"], results[0]["outputs"], strict=True))


def test_nan_is_seen_and_leaves_the_state():
    for result in run_ranks(2, run_method, GradiVeQ(size=32, components=8, sampled=1), None, None, 3, 1):
        assert bool(result["outputs"][1][:100].isnan().all())
        assert bool(result["outputs"][2].isfinite().all())


def test_a_sampled_step_delivers_the_residual():
    code, x = GradiVeQ(size=8, components=2, period=6, sampled=1), gaussian(80)
    state, residual, total = code.init_state(x.shape, Key()), torch.zeros_like(x), torch.zeros_like(x)
    payload = code.layout(x.shape).views(torch.empty(code.layout(x.shape).nbytes, dtype=torch.uint8))
    for step in range(1, 8):
        code.encode_feedback(x, residual, payload, state, Key(step=step))
        code.add_decoded(payload, total)
        assert bool(residual.any()) == (step not in (1, 7))
    torch.testing.assert_close(total, 7 * x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x", [torch.zeros(40), torch.full((40,), 1e30), torch.full((40,), 1e-41)], ids=str)
def test_extreme_gradients_leave_a_basis_that_can_be_used(x):
    basis = taught(GradiVeQ(size=8, components=2, sampled=2), x)["basis"]
    torch.testing.assert_close(basis @ basis.mT, torch.eye(2), rtol=0, atol=1e-5)


def test_the_traffic():
    code = GradiVeQ(size=256, components=16, period=500, sampled=5)
    n = 256 * 1000
    assert capabilities.traffic(code, (n,)) == pytest.approx(0.01 * (4 * n + 4 * 16 * 256) + 0.99 * 4 * 16 * 1000)
    assert capabilities.pays_for(code, (n,))
    assert not capabilities.pays_for(code, (256 * 255,))
    assert not capabilities.pays_for(code, (0,))


@together
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"size": 1}, "GradiVeQ.size must be an integer in [2, 4096], got 1"),
        ({"components": 0}, "GradiVeQ.components must be an integer in [1, 256], got 0"),
        ({"size": 8, "components": 9}, "GradiVeQ.components must be an integer in [1, 8], got 9"),
        ({"sampled": 0}, "GradiVeQ.sampled must be an integer >= 1, got 0"),
        ({"period": 5}, "GradiVeQ.period must be an integer > sampled = 5, got 5"),
        ({"min_compression": math.nan}, "GradiVeQ.min_compression must be a finite number >= 1, got nan"),
    ],
)
def test_bad_parameters(values, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        GradiVeQ(**values)
