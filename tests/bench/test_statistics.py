import pytest

from gradwire.bench.statistics import WARM_UP, Summary, interleave, stopwatch, summarise


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
