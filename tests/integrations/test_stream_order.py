"""On a GPU every stream waits for what it reads, and nothing is overwritten while another stream reads it.

Without a GPU: what was recorded, waited for and launched is what is checked, and not what a device did with it.
"""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.stream_jobs import COMMUNICATION, exchanged, flown

EXCHANGES = [
    ("twobit", "allgather"),
    ("eden", "two_phase"),
    ("topk", "allgather"),
    ("powersgd", "allreduce"),
    ("qsgd", "broadcast"),
]


@pytest.mark.parametrize(("method", "strategy"), EXCHANGES)
def test_every_access_is_ordered(method: str, strategy: str) -> None:
    for unordered, log in run_ranks(2, exchanged, method, strategy):
        assert unordered == []
        assert any(each[:2] == ("launch", COMMUNICATION) for each in log)


def test_a_bucket_is_waited_for_before_anything_is_launched_on_the_side() -> None:
    """Record on the stream of the gradients, wait on the side stream, launch there, and record there for DDP."""
    for _, log in run_ranks(2, exchanged, "twobit", "allgather"):
        side = next(stream for word, stream, *_ in log if word == "wait" and stream not in (0, COMMUNICATION))
        first = next(place for place, each in enumerate(log) if each[:2] == ("launch", side))
        before: list[Any] = [each[:2] for each in log[:first]]
        assert ("record", 0) in before
        assert before.index(("record", 0)) < before.index(("wait", side))
        sent = next(place for place in range(first, len(log)) if log[place][:2] == ("launch", COMMUNICATION))
        assert ("record", side) in [each[:2] for each in log[first:sent]]
        assert ("record", side) in [each[:2] for each in log[sent:]]


@pytest.mark.parametrize("broken", ["side", "main"])
def test_a_wait_that_is_missing_is_found(broken: str) -> None:
    for unordered, _ in run_ranks(2, exchanged, "twobit", "allgather", broken):
        assert unordered
        assert all("does not wait for" in each for each in unordered)


def test_a_flight_waits_for_the_change_that_it_takes() -> None:
    assert flown(broken=False) == []
    assert flown(broken=True) != []
