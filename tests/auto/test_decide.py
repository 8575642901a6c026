"""The choice of a way through the buckets, against all ways."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.auto.decide import ALIKE, Option, Stage, best, exposed, finish
from gradwire.auto.timeline import Timeline

numbers = st.floats(0.0, 1.0, allow_nan=False)
stages = st.lists(
    st.builds(
        lambda ready, dense, others: Stage(ready, [Option(dense, 0.0), *others]),
        numbers,
        numbers,
        st.lists(st.none() | st.builds(Option, numbers, numbers), min_size=2, max_size=2),
    ),
    min_size=1,
    max_size=4,
).map(lambda made: [Stage(sum(each.ready for each in made[: i + 1]), stage.options) for i, stage in enumerate(made)])


def error(made: list[Stage], chosen: tuple[int, ...] | list[int]) -> float:
    options = [stage.options[place] for stage, place in zip(made, chosen, strict=True)]
    return sum(2.0 if option is None else option.error for option in options)


@given(stages, numbers)
def test_the_budget_is_kept_and_no_way_within_it_is_much_faster(made: list[Stage], budget: float) -> None:
    chosen = best(made, budget)
    assert error(made, chosen) <= budget + 1e-12
    ways = itertools.product(*(range(len(stage.options)) for stage in made))
    able = [
        way
        for way in ways
        if all(made[i].options[place] is not None for i, place in enumerate(way)) and error(made, way) <= budget
    ]
    least = min(finish(made, way) for way in able)
    # What is thinned out on the way differs in its error by less than a 64th of the budget, so a way with that much
    # less to spend is found.
    tight = [way for way in able if error(made, way) <= budget * (1 - len(made) / 32)]
    bound = min(finish(made, way) for way in tight) if tight else max(finish(made, way) for way in able)
    assert finish(made, chosen) <= max(bound, least) * (1 + 2 * ALIKE) + 1e-9


def test_what_is_hidden_stays_exact() -> None:
    fast, slow = Option(0.1, 0.01), Option(0.4, 0.0)
    assert best([Stage(float(i), [slow, fast]) for i in range(5)], 1.0) == [0, 0, 0, 0, 1]


def test_many_buckets_share_a_budget_that_is_not_enough_for_all() -> None:
    made = [Stage(0.0, [Option(1.0, 0.0), Option(0.5, 0.01), Option(0.25, 0.05)]) for _ in range(40)]
    chosen = best(made, 0.41)
    assert error(made, chosen) <= 0.41
    # 40 times 0.01 is nearly all: who gave one bucket 0.05 took it from four others.
    assert finish(made, chosen) <= 20.6


HEAD = [Stage(0.0, [Option(0.6, 0.0), Option(0.1, 0.05)]), *(Stage(0.1 * i, [Option(0.02, 0.0)]) for i in range(1, 9))]
"""A large first bucket whose exchange outlasts several others' gradients."""


@pytest.mark.parametrize(("buffers", "stood", "end"), [(None, 0.0, 0.82), (1, 0.5, 1.32), (2, 0.4, 1.22)])
def test_what_computes_stands_still_when_as_many_are_under_way_as_may_be(
    buffers: int | None, stood: float, end: float
) -> None:
    line = Timeline(buffers=buffers)
    for stage in HEAD:
        option = stage.options[0]
        assert option is not None
        line = line.after(stage.ready, option.seconds)
    assert (line.stood, line.now) == (pytest.approx(stood), pytest.approx(end))
    assert finish(HEAD, [0] * 9, buffers) == pytest.approx(end)
    # The others hide the exchange of the first bucket, or else come later for it.
    assert best(HEAD, 1.0, buffers=buffers)[0] == (buffers is not None)


def test_nothing_hides_what_is_waited_for() -> None:
    alone = [Stage(float(i), [Option(0.5, 0.0)], blocking=True) for i in range(4)]
    assert finish(alone, [0] * 4) == 5.0
    # One between others delays those after it.
    mixed = [Stage(float(i), [Option(0.5, 0.0)], blocking=i == 1) for i in range(4)]
    assert finish(mixed, [0] * 4) == 4.0


def test_what_holds_up_others_is_hardly_ever_missed() -> None:
    numbers, missed = random.Random(0), 0
    for _ in range(2000):
        ready = itertools.accumulate(numbers.random() * numbers.choice([0.1, 1.0]) for _ in range(4))
        made = [
            Stage(
                each,
                [Option(numbers.random(), 0.0), *(Option(numbers.random(), numbers.random()) for _ in range(2))],
                blocking=numbers.random() < 0.2,
            )
            for each in ready
        ]
        budget, buffers = numbers.random(), numbers.choice([1, 2])
        chosen = best(made, budget, buffers=buffers)
        assert error(made, chosen) <= budget
        ways = itertools.product(range(3), repeat=4)
        least = min(finish(made, way, buffers) for way in ways if error(made, way) <= budget)
        missed += finish(made, chosen, buffers) > 1.03 * least
    assert missed < 20


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=6), st.sampled_from([None, 1, 2]))
def test_each_second_that_computing_stands_still_belongs_to_one_exchange(
    drawn: list[tuple[float, float, bool]], buffers: int | None
) -> None:
    ready = itertools.accumulate(each[0] for each in drawn)
    seconds = [each[1] for each in drawn]
    made = [Stage(at, [Option(each[1], 0.0)], each[2]) for at, each in zip(ready, drawn, strict=True)]
    found = exposed(made, seconds, buffers)
    longer = max(0.0, finish(made, [0] * len(made), buffers) - made[-1].ready)
    assert sum(found) == pytest.approx(longer, abs=1e-9)
    assert all(0 <= one <= each + 1e-9 for one, each in zip(found, seconds, strict=True))
