"""Exchanges that are made or first used in a mode of the caller's, over real Gloo processes."""

import pytest

from gradwire.testing.processes import run_ranks
from tests.integrations.modes_jobs import ENTRIES, modes


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_mode_of_the_caller_changes_nothing_and_ends_nothing(entry: str) -> None:
    for heard in run_ranks(2, modes, entry, timeout=60):
        assert set(heard.values()) == {"nothing was raised"}, heard
