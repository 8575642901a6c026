import copy
import math
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.lowrank.powersgd import PowerSGD
from gradwire.compressors.lowrank.products import (
    add_products,
    batch_of,
    evenly_spaced,
    orthonormal,
    orthonormal_each,
    solve_left,
    solve_right,
)
from gradwire.errors import ConfigError
from gradwire.memory.residual import Residual
from gradwire.testing.inputs import gaussian
from gradwire.testing.ranks import mean_rounds
from gradwire.testing.strategies import matrices
from gradwire.vocabulary import Key, State
from tests.cases import together


def matrix(m: int, length: int, seed: int = 0) -> Tensor:
    return gaussian(m * length, seed).view(m, length)


def decoded(code: PowerSGD, x: Tensor, state: State | None = None) -> Tensor:
    return code.decompress(code.compress(x, state), x.shape)


def error(x: Tensor, approximation: Tensor) -> float:
    return float((x - approximation).double().square().sum())


@given(x=matrices())
def test_the_decoded_matrix_is_an_orthogonal_projection(x):
    code = PowerSGD(rank=2)
    out, size = decoded(code, x).double(), float(x.double().norm())
    rest = x.double() - out
    assert math.isfinite(float(out.sum()))
    assert float(out.norm()) <= size * (1 + 1e-4) + 1e-30
    assert abs(float((out * rest).sum())) <= 1e-4 * size**2 + 1e-30
    assert torch.linalg.matrix_rank(out, rtol=1e-5) <= 2


def test_rows_of_p_are_orthonormal():
    code, x = PowerSGD(rank=4), matrix(30, 20)
    p = code.layout(x.shape).views(code.compress(x))[0].view(4, 30)
    assert torch.allclose(p @ p.mT, torch.eye(4), atol=1e-6)


@together
@pytest.mark.parametrize("kind", ["zero", "one row", "rank 1", "equal columns", "tiny", "huge"])
def test_matrices_that_lack_directions(kind):
    x = {
        "zero": torch.zeros(6, 5),
        "one row": torch.zeros(6, 5).index_fill_(0, torch.tensor([3]), 2.0),
        "rank 1": torch.outer(gaussian(6), gaussian(5, 1)),
        "equal columns": gaussian(6).unsqueeze(1).expand(6, 5).contiguous(),
        "tiny": torch.outer(gaussian(6), gaussian(5, 1)) * 1e-36,
        "huge": torch.outer(gaussian(6), gaussian(5, 1)) * 1e34,
    }[kind]
    assert torch.allclose(decoded(PowerSGD(rank=3), x), x, rtol=1e-4, atol=1e-4 * float(x.abs().amax()))


def test_after_a_gradient_of_zero_it_still_learns():
    code, x = PowerSGD(rank=2), matrix(20, 10)
    state = code.init_state(x.shape, Key())
    fresh = state["q"].clone()
    decoded(code, torch.zeros_like(x), state)
    assert torch.equal(state["q"], fresh)
    assert error(x, decoded(code, x, state)) < 0.9 * float(x.square().sum())


def test_nan_is_seen_by_all_and_forgotten_by_the_state():
    code, x = PowerSGD(rank=2), matrix(20, 10)
    state = code.init_state(x.shape, Key())
    broken = x.clone()
    broken[3, 4] = math.nan
    assert decoded(code, broken, state).isnan().all()
    assert state["q"].isfinite().all()


def test_the_warm_start_converges_to_the_best_approximation():
    code, x = PowerSGD(rank=3), matrix(40, 30)
    state = code.init_state(x.shape, Key())
    errors = [error(x, decoded(code, x, state)) for _ in range(200)]
    best = float(torch.linalg.svdvals(x.double())[3:].square().sum())
    assert errors[0] > 1.1 * best
    assert errors[-1] == pytest.approx(best, rel=1e-3)
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in pairwise(errors))


def test_ranks_decode_the_projection_of_their_mean():
    code, ranks = PowerSGD(rank=2), 4
    xs = [[matrix(12, 9, seed=rank)] for rank in range(ranks)]
    keys = [[Key(rank=rank)] for rank in range(ranks)]
    states = [[code.init_state((12, 9), key[0])] for key in keys]
    payloads = mean_rounds(code, xs, states, keys)
    mean = torch.stack([x[0] for x in xs]).mean(0)
    p = payloads[0][0][0].view(2, 12)
    out = torch.zeros(12, 9)
    code.add_decoded(payloads[3][0], out)
    assert torch.allclose(out, p.mT @ p @ mean, atol=1e-5)


def test_the_start_is_the_same_on_all_ranks_and_nearly_normal():
    q = PowerSGD(rank=4).init_state((8, 100000), Key(rank=1, tensor=7))["q"]
    assert torch.equal(q, PowerSGD(rank=4).init_state((8, 100000), Key(rank=2, tensor=7))["q"])
    assert not torch.equal(q, PowerSGD(rank=4).init_state((8, 100000), Key(tensor=8))["q"])
    moments = [float(q.double().pow(power).mean()) for power in (1, 2, 4)]
    assert moments == pytest.approx([0.0, 1.0, 3.0 - 6 / 5 / 8], abs=0.05)


def bucket(shapes: list[tuple[int, int]], gap: int) -> list[Tensor]:
    """Matrices in one storage, ``gap`` elements apart."""
    flat, views, offset = gaussian(sum(m * length + gap for m, length in shapes)), [], 0
    for m, length in shapes:
        views.append(flat[offset : offset + m * length].view(m, length))
        offset += m * length + gap
    return views


@together
@pytest.mark.parametrize("gap", [0, 7])
@pytest.mark.parametrize("shapes", [[(6, 5)] * 3, [(6, 5), (4, 5), (6, 5), (6, 5)], [(6, 5), (6, 4), (5, 6)]])
def test_a_batch_gives_what_each_matrix_gives_alone(shapes, gap):
    code, xs = PowerSGD(rank=2), bucket(shapes, gap)
    keys = [Key(tensor=tensor) for tensor in range(len(xs))]
    states = [code.init_state(x.shape, key) for x, key in zip(xs, keys, strict=True)]
    alone = [decoded(code, x, copy.deepcopy(state)) for x, state in zip(xs, states, strict=True)]
    (payloads,) = mean_rounds(code, [xs], [states], [keys])
    for x, payload, single in zip(xs, payloads, alone, strict=True):
        out = torch.zeros_like(x)
        code.add_decoded(payload, out)
        assert torch.allclose(out, single, atol=1e-5)


@together
@pytest.mark.parametrize("rank", [1, 4, 5, 9])
def test_decoding_adds_p_times_q(rank):
    code, x = PowerSGD(rank=rank), matrix(30, 20)
    payload = code.layout(x.shape).views(code.compress(x))
    p, q = payload[0].view(rank, 30), payload[1].view(rank, 20)
    out = x.clone()
    code.add_decoded(payload, out, -0.5)
    assert torch.allclose(out, x - 0.5 * p.mT @ q, atol=1e-5)


def test_feedback_delivers_everything_in_the_end():
    code, x = PowerSGD(rank=1), matrix(12, 8)
    state, residual, total = code.init_state(x.shape, Key()), torch.zeros_like(x), torch.zeros_like(x)
    payload = code.layout(x.shape).views(torch.empty(code.layout(x.shape).nbytes, dtype=torch.uint8))
    for _ in range(400):
        code.encode_feedback(x, residual, payload, state, Key())
        code.add_decoded(payload, total)
    assert torch.allclose(total + residual, 400 * x, rtol=1e-3, atol=1e-2)
    assert error(x, total / 400) < 0.01 * float(x.square().sum())


def test_more_iterations_start_better_and_send_more():
    x = matrix(40, 30)
    errors = [error(x, decoded(PowerSGD(rank=3, iterations=count), x)) for count in (1, 2, 8)]
    assert errors[0] > errors[1] > errors[2]
    once, twice = (capabilities.traffic(PowerSGD(rank=3, iterations=count), x.shape) for count in (1, 2))
    assert twice == 2 * once == 8 * 3 * 70
    assert capabilities.rounds_needed(PowerSGD(iterations=2)) == 4


def test_iterations_in_one_step_are_steps_of_the_warm_start():
    x = matrix(12, 9)
    code, state = PowerSGD(rank=2), PowerSGD(rank=2).init_state(x.shape, Key())
    for _ in range(3):
        warm = decoded(code, x, state)
    torch.testing.assert_close(decoded(PowerSGD(rank=2, iterations=3), x), warm, rtol=1e-4, atol=1e-5)


def test_local_error_keeps_what_the_own_factor_leaves():
    code, ranks = PowerSGD(rank=2, error="local"), 3
    xs = [[matrix(12, 9, seed=rank)] for rank in range(ranks)]
    keys = [[Key(rank=rank)] for rank in range(ranks)]
    states = [[code.init_state((12, 9), key[0])] for key in keys]
    payloads = mean_rounds(code, xs, states, keys)
    p = payloads[0][0][0].view(2, 12)
    for (x,), (payload,) in zip(xs, payloads, strict=True):
        residual = x.clone()
        capabilities.add_own(code, payload, residual, -1.0)
        torch.testing.assert_close(residual, x - p.mT @ p @ x, rtol=1e-4, atol=1e-5)


def after_many_steps(code: PowerSGD, ranks: int, steps: int) -> float:
    """The relative error of what came out, where each rank's gradient stays and its residual has 16 bits."""
    memory, shape, never = Residual(dtype="bfloat16"), (24, 16), torch.zeros(1, dtype=torch.bool)
    grads = [matrix(*shape, seed=rank) for rank in range(ranks)]
    kept = [{"residual": torch.zeros(shape, dtype=torch.bfloat16)} for _ in grads]
    states = [code.init_state(shape, Key()) for _ in grads]
    payloads = [code.layout(shape).views(torch.zeros(code.layout(shape).nbytes, dtype=torch.uint8)) for _ in grads]
    total = torch.zeros(shape, dtype=torch.float64)
    for step in range(steps):
        xs = [grad.clone() for grad in grads]
        for x, mine in zip(xs, kept, strict=True):
            memory.compensate(x, mine)
        rounds = [
            code.rounds([x], [payload], [state], [Key(step=step)])
            for x, payload, state in zip(xs, payloads, states, strict=True)
        ]
        for fields in zip(*rounds, strict=True):
            mean = torch.stack([payload[fields[0]] for payload in payloads]).mean(0)
            for payload in payloads:
                payload[fields[0]].copy_(mean)
        for x, payload, mine in zip(xs, payloads, kept, strict=True):
            capabilities.add_own(code, payload, x, -1.0)
            memory.update(x, mine, never)
        out = torch.zeros(shape)
        code.add_decoded(payloads[0], out)
        total += out
    mean = torch.stack(grads).mean(0)
    return float((total / steps - mean).norm() / mean.norm())


def test_in_16_bits_the_residual_does_not_drown_what_ranks_have_in_common():
    code = PowerSGD(rank=2)
    assert after_many_steps(capabilities.in_16_bits(code), 5, 1500) < 0.01
    assert after_many_steps(code, 5, 1500) > 0.1


def test_local_and_global_error_send_the_same():
    ranks, outputs, sizes = 2, [], []
    for code in (PowerSGD(rank=2, error="global"), PowerSGD(rank=2, error="local")):
        keys = [[Key(rank=rank)] for rank in range(ranks)]
        states = [[code.init_state((12, 9), key[0])] for key in keys]
        residuals = [torch.zeros(12, 9) for _ in range(ranks)]
        for step in range(30):
            xs = [[matrix(12, 9, seed=2 * step + rank) + residuals[rank]] for rank in range(ranks)]
            payloads = mean_rounds(code, xs, states, keys)
            for rank in range(ranks):
                residuals[rank].copy_(xs[rank][0])
                capabilities.add_own(code, payloads[rank][0], residuals[rank], -1.0)
        out = torch.zeros(12, 9)
        code.add_decoded(payloads[0][0], out)
        outputs.append(out)
        sizes.append(float(residuals[0].norm()))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-2, atol=1e-2)
    assert sizes[1] < sizes[0]


@together
@pytest.mark.parametrize(
    ("shape", "pays"),
    [
        ((1000,), False),
        ((), False),
        ((0, 5), False),
        ((8, 8), False),
        ((9, 9), True),
        ((1, 1000), False),
        ((64, 3, 3), True),
    ],
)
def test_what_pays(shape, pays):
    assert capabilities.pays_for(PowerSGD(rank=2), shape) is pays


def test_min_compression_moves_the_limit():
    assert capabilities.pays_for(PowerSGD(rank=1, min_compression=4.9), (10, 10))
    assert not capabilities.pays_for(PowerSGD(rank=1, min_compression=5), (10, 10))


@together
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "2", None, math.nan])
def test_bad_rank(bad):
    with pytest.raises(ConfigError, match=re.escape(f"PowerSGD.rank must be an integer >= 1, got {bad!r}")):
        PowerSGD(rank=bad)


@together
@pytest.mark.parametrize("bad", [0, 0.5, -2.0, math.inf, math.nan, True, "2", None])
def test_bad_min_compression(bad):
    with pytest.raises(
        ConfigError, match=re.escape(f"PowerSGD.min_compression must be a finite number >= 1, got {bad!r}")
    ):
        PowerSGD(min_compression=bad)


@together
@pytest.mark.parametrize("bad", [0, 1.5, True, None])
def test_bad_iterations(bad):
    with pytest.raises(ConfigError, match=re.escape(f"PowerSGD.iterations must be an integer >= 1, got {bad!r}")):
        PowerSGD(iterations=bad)


def test_bad_error():
    with pytest.raises(ConfigError, match=re.escape("PowerSGD.error must be 'global' or 'local', got 'both'")):
        PowerSGD(error="both")


@together
@pytest.mark.parametrize("scale", [1e-25, 1e-13, 1e15, 1e30])
@pytest.mark.parametrize("iterations", [1, 2])
def test_where_the_iteration_starts_has_no_scale(iterations, scale):
    """X Q with the Q of the step before, or of the iteration before, is of the square of the gradient's size."""
    code, x = PowerSGD(rank=2, iterations=iterations), torch.outer(gaussian(40, 1), gaussian(30, 2))
    state = code.init_state(x.shape, Key())
    for step in range(3):
        buffer = code.compress(x * scale, state, Key(step=step))
    torch.testing.assert_close(code.decompress(buffer, x.shape) / scale, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", [0, 40, 1 << 20])
@pytest.mark.parametrize("rank", [1, 3])
def test_factors_are_made_orthonormal_together_as_alone(rank, padding):
    factors = [gaussian(rank * m, m).view(rank, m) for m in (20, 5, 64, 5, 18, 300)]
    factors.append(torch.zeros(rank, 5))
    alone = [orthonormal(each.unsqueeze(0))[0] for each in factors]
    orthonormal_each(factors, padding=padding)
    for found, expected in zip(factors[:-1], alone[:-1], strict=True):
        assert torch.allclose(found @ found.mT, torch.eye(rank), atol=1e-6)
        assert torch.allclose(found, expected, atol=1e-6)
    assert not factors[-1].any()


@pytest.mark.parametrize("rank", [2, 17])
def test_products_of_a_bucket_are_those_of_its_matrices(rank):
    """Above the rank of the kernels matrices are batched that lie evenly, with others between them."""
    xs = bucket([(20, 30), (20, 30), (9, 40), (20, 30), (25, 18), (20, 30), (20, 30)], gap=3)
    ps = bucket([(rank, x.shape[0]) for x in xs], gap=0)
    qs = bucket([(rank, x.shape[1]) for x in xs], gap=5)
    p_found, q_found = ([torch.full_like(each, math.nan) for each in factors] for factors in (ps, qs))
    solve_left(xs, qs, p_found)
    solve_right(xs, ps, q_found)
    outs = bucket([tuple(x.shape) for x in xs], gap=3)
    expected = [x.double() - 0.5 * p.double().mT @ q.double() for x, p, q in zip(outs, ps, qs, strict=True)]
    add_products(outs, ps, qs, -0.5)
    for x, p, q, left, right in zip(xs, ps, qs, p_found, q_found, strict=True):
        assert torch.allclose(left.double(), q.double() @ x.double().mT, atol=1e-4)
        assert torch.allclose(right.double(), p.double() @ x.double(), atol=1e-4)
    for out, wanted in zip(outs, expected, strict=True):
        assert torch.allclose(out.double(), wanted, atol=1e-4)


def test_matrices_that_lie_evenly_are_found_and_nothing_else_is_taken():
    xs = bucket([(4, 6), (4, 6), (2, 3), (4, 6), (4, 6), (4, 6), (4, 6)], gap=0)
    assert list(evenly_spaced(xs)) == [[0, 1], [3, 4, 5, 6], [2]]
    apart = [each.clone() for each in xs]
    assert list(evenly_spaced(xs, apart)) == [[0], [1], [3], [4], [5], [6], [2]]
    assert list(evenly_spaced(xs[:2][::-1])) == [[0], [1]]
    assert list(evenly_spaced([xs[0], xs[0]])) == [[0], [1]]
    for run in evenly_spaced(xs):
        for number, each in zip(run, batch_of(xs, run), strict=True):
            assert torch.equal(each, xs[number])
            assert each.data_ptr() == xs[number].data_ptr()
