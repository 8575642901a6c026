"""A threshold from a sample, and the codes of a level that differs between elements: kernels against references."""

import math

import pytest
import torch

from gradwire.compressors.ternary.ops import dithered_encode, dithered_encode_feedback
from gradwire.contrib.compressors.sparse.ops import capacity, threshold_encode
from gradwire.contrib.compressors.sparse.ops import threshold_encode_feedback as encode_feedback
from gradwire.kernels import auto_threshold
from gradwire.kernels.codes import code_bytes, unpack
from gradwire.kernels.dither import SAMPLE, dither, sampled_places
from tests.cases import together
from tests.ops.harness import TARGETS, Case, check_against_reference, gradient, sweep

LEVELS = (1e-45, 0.3, 1.7, math.inf)
AGREED = ([math.nan, math.nan], [0.0, 0.0], [0.3, 0.4], [1e-45, 0.25], [3e38, 0.25])


def state(turn=0, advice=(0.0, 0.0)):
    return {"advice": torch.tensor(advice), "turn": torch.tensor([turn])}


def chosen(x, target, agreed=(0.0, 0.0), turn=0, advice=(0.0, 0.0), residual=None):
    """(threshold, level, wish with the advice before as if it were 0)."""
    t, level, kept = torch.empty(1), torch.empty(1), state(turn, advice)
    auto_threshold(x, t, level, kept["advice"], torch.tensor(agreed), kept["turn"], target, residual)
    assert kept["turn"].item() == turn + 1
    return t.item(), level.item(), kept["advice"].tolist()


@sweep
def test_the_threshold(n, threads, offset):
    for agreed, finite, turn in zip(AGREED, (True, False, True, False, True), (0, 1, 7, 2**31, 2**40), strict=True):
        residual = {"residual": gradient(n, 2, finite=finite)} if turn else {}
        inputs = {"x": gradient(n, 1, finite=finite), "agreed": torch.tensor(agreed), **residual}
        written = {"threshold": ((1,), torch.float32), "level": ((1,), torch.float32), **state(turn, (0.2, 0.25))}
        check_against_reference(Case(auto_threshold, inputs, written, {"target": 0.07}), threads, 2 * offset)


@sweep
def test_the_codes(n, threads, offset):
    for level in LEVELS:
        inputs = {"x": gradient(n, 1, finite=False), "level": torch.tensor([level])}
        case = Case(dithered_encode, inputs, {"codes": ((code_bytes(n, 2),), torch.uint8)})
        check_against_reference(case, threads, offset)


@sweep
@pytest.mark.parametrize("watched", [True, False])
def test_the_codes_with_a_residual(n, threads, offset, watched):
    for level, finite in zip(LEVELS[1:], (True, False, True), strict=True):
        inputs = {"threshold": torch.tensor([0.7]), "level": torch.tensor([level])}
        written = {"grad": gradient(n, 2, finite=finite), "residual": gradient(n, 3)}
        written |= {"codes": ((code_bytes(n, 2),), torch.uint8)}
        written |= {"status": torch.tensor([2], dtype=torch.int32)} if watched else {}
        check_against_reference(Case(dithered_encode_feedback, inputs, written), threads, offset)


@sweep
@pytest.mark.parametrize("finite", [True, False])
def test_exact_values_above_a_dithered_level(n, threads, offset, finite):
    for level in LEVELS[1:3]:
        sent = {"used": ((1,), torch.int32), "stream": ((capacity(n),), torch.uint8)}
        inputs = {"level": torch.tensor([level])}
        x = {"x": gradient(n, 3, finite=finite)}
        check_against_reference(Case(threshold_encode, inputs | x, sent, {"threshold": 0.0}), threads, 4)
        written = {"grad": gradient(n, 1), "residual": gradient(n, 2, finite=finite), **sent}
        case = Case(encode_feedback, inputs, written, {"threshold": 0.0, "status": None})
        check_against_reference(case, threads, 4 * offset)


@together
@pytest.mark.parametrize("n", [16, 1000, 65536])
def test_the_dither_is_even_over_every_run(n):
    factors = dither(torch.arange(100_000, 100_000 + n))
    ordered = factors.sort().values
    even = 1 + torch.arange(n) / n
    assert float((ordered - even).abs().amax()) < 4 / n
    assert 1 <= float(ordered[0]) <= float(ordered[-1]) < 2


@together
@pytest.mark.parametrize("n", [0, 1, SAMPLE - 1, SAMPLE, SAMPLE + 1, 100_000, 10**9])
def test_one_place_of_each_run_and_in_time_every_place(n):
    turns = [sampled_places(n, torch.tensor([turn])) for turn in range(200)]
    for places in turns:
        assert places.numel() == min(n, SAMPLE)
        assert bool((places.diff() > 0).all())
        assert n == 0 or (int(places[0]) >= 0 and int(places[-1]) < n)
    assert torch.cat(turns).unique().numel() >= min(n, 90_000)


def test_the_level_lets_the_target_fire():
    x = gradient(100_000, 1).clamp(-5, 5)
    for target in (0.01, 0.1, 0.5):
        t, level, _ = chosen(x, target)
        codes = torch.empty(code_bytes(x.numel(), 2), dtype=torch.uint8)
        dithered_encode(x, codes, torch.tensor([level]))
        assert t == level
        assert float((unpack(codes, 2, x.numel()) > 1).float().mean()) == pytest.approx(target, rel=0.4)


@together
@pytest.mark.parametrize("value", [1e-30, -1.0, 1e30])
def test_of_equal_elements_the_target_fires(value):
    x, codes = torch.full((2000,), value), torch.empty(code_bytes(2000, 2), dtype=torch.uint8)
    dithered_encode(x, codes, torch.tensor([chosen(x, 0.1)[1]]))
    assert int((unpack(codes, 2, 2000) > 1).sum()) == 200


def test_where_few_are_not_zero_half_of_those_fire():
    x = torch.zeros(2000)
    x[::200] = 1.0
    assert int((x >= chosen(x, 0.1)[1] * dither(torch.arange(2000))).sum()) == 5


def test_one_element_fires():
    for value in (1e-38, 0.3, -7.0):
        codes, x = torch.empty(4, dtype=torch.uint8), torch.tensor([value])
        dithered_encode(x, codes, torch.tensor([chosen(x, 0.01)[1]]))
        assert codes.tolist() == [0b11000000 if value > 0 else 0b10000000, 0, 0, 0]


def test_nothing_to_go_by():
    """Zeros and what is no number: no threshold before an agreement, and then the one that was agreed on."""
    for x in (torch.zeros(50), torch.full((50,), math.nan), torch.full((50,), math.inf), torch.zeros(0)):
        assert chosen(x, 0.1) == (0.0, math.inf, [0.0, 0.0])
        assert chosen(x, 0.1, agreed=(1.0, 0.5)) == (2.0, 1.0, [0.5, 0.25])


def test_what_is_not_finite_counts_as_zero():
    x = gradient(1000, 1).clamp(-5, 5)
    hurt, zeroed = x.clone(), x.clone()
    hurt[::7], zeroed[::7] = math.nan, 0.0
    hurt[1], zeroed[1] = -math.inf, 0.0
    assert chosen(hurt, 0.1) == chosen(zeroed, 0.1)


@together
@pytest.mark.parametrize(("scale", "wish"), [(1e3, 8.0), (1e-3, 0.5), (3.0, 6.0)])
def test_a_wish_is_within_a_factor_of_4_of_what_was_agreed_on(scale, wish):
    """The level follows at once: a jump of the scale lets no more elements fire."""
    x = torch.full((1000,), scale)
    x[: 1000 // 2] *= 2
    t, level, advice = chosen(x / dither(torch.arange(1000)).reciprocal(), 0.5, agreed=(1.0, 0.5))
    assert t == 2.0
    assert advice == pytest.approx([0.25 * min(max(2 * scale, wish), wish), 0.25], rel=1e-3)
    assert level == pytest.approx(max(2 * scale, 1.0), rel=1e-3)


def test_wishes_fade():
    x = torch.full((1,), 4.0)
    t, _, advice = chosen(x, 0.1, advice=(2.0, 0.5))
    assert t == pytest.approx(4.0)
    assert advice == pytest.approx([0.75 * 2.0 + 0.25 * 4.0, 0.75 * 0.5 + 0.25])


def test_all_targets_of_this_cpu_are_there():
    assert TARGETS
