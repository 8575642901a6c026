"""Times at which gradients are there, by a clock that stands still while exchanges hold up what computes them."""

from __future__ import annotations

import pytest

from gradwire.auto.shared_link import Gathers
from gradwire.auto.step_record import BucketRun, StepRecord, arrivals


def step(*runs: tuple[float, float], held: list[float | None] | None = None, blocking: int | None = None) -> StepRecord:
    """A step of buckets that were there and done at these times; the first of them begins it."""
    found = []
    for i, (ready, done) in enumerate(runs):
        run = BucketRun(
            ((f"{i}", (1,)),), ready, ready, 0.0, held=0.0 if held is None else held[i], blocking=blocking == i
        )
        run.done = done
        found.append(run)
    return StepRecord(begun=runs[0][0], runs=found)


def test_without_a_pause_it_is_the_time_that_goes_by() -> None:
    assert arrivals(step((10.0, 13.0), (11.0, 16.0), (12.0, 19.0))) == [0.0, 1.0, 2.0]


def test_a_pause_of_the_thread_that_computes_does_not_count() -> None:
    # It had stood still for five seconds before the step, and does so for two more before the third bucket.
    assert arrivals(step((10.0, 13.0), (11.0, 16.0), (14.0, 19.0), held=[5.0, 5.0, 7.0])) == [0.0, 1.0, 2.0]


def test_a_bucket_that_is_waited_for_lets_it_go_on_when_it_is_done() -> None:
    assert arrivals(step((10.0, 13.0), (11.0, 17.0), (18.0, 21.0), blocking=1)) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_stream_that_waits_for_a_reduction_has_its_gradients_right_after_it(buffers: int) -> None:
    # A layer is computed in a second and reduced in three; the stream goes on when all but some reductions are over.
    times, now, done = [], 10.0, list[float]()
    for i in range(5):
        if i >= buffers:
            now = max(now, done[i - buffers]) + 1e-6
        times.append((now, max([now, *done[-1:]]) + 3.0))
        done.append(times[-1][1])
        now += 1.0
    found = arrivals(step(*times, held=[None] * 5), buffers)
    assert found == pytest.approx([0.0, *[float(buffers - 1)] * 4], abs=1e-5)


def test_a_stream_that_does_not_wait_has_them_when_they_are_computed() -> None:
    assert arrivals(step((10.0, 10.5), (11.0, 11.5), (12.0, 12.5), held=[None] * 3)) == [0.0, 1.0, 2.0]


def test_a_pause_for_weights_hides_nothing() -> None:
    made = step((10.0, 13.0), (15.0, 16.0), (19.0, 20.0))
    made.runs[0].gathers = Gathers(stalls=((8.0, 9.0),))  # Before the first bucket, which begins the step.
    made.runs[1].gathers = Gathers(stalls=((10.5, 12.0), (12.0, 14.5)))
    made.runs[2].gathers = Gathers(stalls=((15.0, 18.0),))
    assert arrivals(made) == [0.0, 1.0, 2.0]
