import pytest

from tests.forked import fork_workers


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    return one_thread


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch):
    fork_workers(monkeypatch)
