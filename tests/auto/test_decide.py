"""The choice of a way through the buckets, against all ways."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gradwire.auto.decide import ALIKE, Option, Stage, best, finish

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
