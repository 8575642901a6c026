"""Messages of a GPU over Gloo go by the host's memory, and give the same bits."""

from __future__ import annotations

import pytest

from gradwire.testing.processes import run_ranks
from tests.strategies.host_jobs import averaged


@pytest.mark.parametrize(
    ("method", "strategy"), [("twobit", "allgather"), ("twobit", "two_phase"), ("strom", None), ("oktopk", None)]
)
def test_messages_by_the_host_give_the_same_means(method: str, strategy: str | None) -> None:
    plain = run_ranks(3, averaged, method, strategy, False)
    by_host = run_ranks(3, averaged, method, strategy, True)
    assert [mean for mean, _ in by_host] == [mean for mean, _ in plain]
    assert all(copied for _, copied in by_host)
    assert not any(copied for _, copied in plain)
