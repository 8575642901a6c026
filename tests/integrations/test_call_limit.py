"""A call that other ranks do not make ends in minutes, unless somebody has said how long ranks may be apart."""

from __future__ import annotations

from gradwire.testing.processes import run_ranks
from gradwire.transport.failures import CALL_LIMIT
from tests.integrations.call_limit_jobs import SHORT, alone, gathers, limits


def test_a_call_alone_ends_at_the_limit_and_collectives_keep_their_timeout() -> None:
    (found, text, seconds, after), (other, *_) = run_ranks(2, limits)
    assert found == other == [CALL_LIMIT, None, None]
    assert "in load_state_dict waited timeout=2 s for rank 1" in text
    assert SHORT <= seconds < 60
    assert after == 1800.0


def test_states_that_one_rank_alone_collects_end_at_the_limit() -> None:
    (text, seconds), _ = run_ranks(2, gathers)
    assert "in gathered waited timeout=2 s for rank 1" in text
    assert SHORT <= seconds < 60


def test_a_set_up_alone_ends_at_the_limit() -> None:
    text, _ = run_ranks(2, alone)
    assert (
        "did not all set up gradwire within 10 s: every rank must make the call, or a longer timeout= is needed" in text
    )
