import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from gradwire_lab.bench.statistics import (
    WARM_UP,
    Spread,
    Summary,
    interleave,
    noise_floor,
    spread,
    stopwatch,
    summarise,
    welch_limit,
)

SAMPLES = st.lists(st.integers(0, 1000).map(float), min_size=2, max_size=6)


class Recorder:
    """Contestants that only write down when they ran; their "seconds" are numbered."""

    def __init__(self):
        self.log = []

    def contestant(self, name):
        def run():
            self.log.append(name)
            return float(self.log.count(name))

        return run

    def note(self):
        self.log.append("prepare")


def test_contestants_take_turns_and_the_warm_up_does_not_count():
    recorder = Recorder()
    contestants = {name: recorder.contestant(name) for name in "ab"}
    samples = interleave(contestants, least=3, most=3, prepare=recorder.note)
    assert recorder.log == ["prepare", "a", "b"] * (WARM_UP + 3)
    expected = [float(WARM_UP + i) for i in (1, 2, 3)]
    assert samples == {"a": expected, "b": expected}


def test_who_has_run_before_needs_no_warm_up():
    recorder = Recorder()
    assert interleave({"a": recorder.contestant("a")}, least=2, most=2, warm_up=0) == {"a": [1.0, 2.0]}


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 7), (3600.0, 20)])
def test_time_ends_the_rounds_but_never_below_the_least(seconds, rounds):
    samples = interleave({"a": lambda: 1.0}, seconds=seconds, least=7, most=20)
    assert len(samples["a"]) == rounds


def test_summary_is_the_median_between_the_quartiles():
    assert summarise([5.0, 1.0, 2.0, 4.0, 3.0]) == Summary(median=3.0, low=2.0, high=4.0, count=5)
    assert summarise([2.0]) == Summary(2.0, 2.0, 2.0, 1)


def test_stopwatch_runs_once_and_measures():
    calls = []
    once = stopwatch(lambda: calls.append(1))
    assert once() > 0
    assert calls == [1]


@given(SAMPLES, SAMPLES)
def test_a_difference_is_above_welchs_limit_exactly_where_his_test_says_so(one, other):
    first, second = spread(one), spread(other)
    assume(first.deviation and second.deviation)
    limit = welch_limit(first, second)
    found = stats.ttest_ind(one, other, equal_var=False)
    low, high = found.confidence_interval(0.95)
    assert limit == pytest.approx((high - low) / 2)
    difference = abs(first.mean - second.mean)
    if difference != pytest.approx(limit):
        assert (difference > limit) == (found.pvalue < 0.05)


def test_without_a_spread_there_is_no_limit_of_welch():
    assert welch_limit(Spread(0.5, 0.1, 3), Spread(0.5, 0.0, 1)) is None
    assert welch_limit(Spread(0.5, 0.0, 3), Spread(0.6, 0.0, 3)) is None
    assert welch_limit(Spread(0.5, 0.1, 3), Spread(math.nan, math.nan, 3)) is None
    assert welch_limit(Spread(0.5, 0.1, 3), Spread(0.5, 0.0, 3)) == pytest.approx(stats.t.ppf(0.975, 2) * 0.1 / 3**0.5)


@pytest.mark.parametrize("value", [0.1, 0.7, 0.9888888597488403])
def test_equal_runs_have_no_deviation_at_all_and_no_noise_floor(value):
    assert spread([value] * 3) == Spread(value, 0.0, 3)
    assert noise_floor(spread([value] * 3), 3) is None
    assert math.isnan(spread([math.inf, math.inf]).deviation)
