import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.meeting.workers import Worker, starter


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a real ``gradwire meeting``."""
    code = "from gradwire.cli.main import main; main()"
    command = [sys.executable, "-c", code, "meeting", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        said = keeper.stdout.readline()
        assert said.startswith("meeting place at 127.0.0.1:")
        yield said.rpartition(" ")[2].strip()
        keeper.terminate()
        assert keeper.wait(60) == 0


@pytest.fixture
def places(address: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Places of meetings that nobody has come to."""
    return (f"{address}/{request.node.name}-{i}" for i in itertools.count())


@pytest.fixture
def place(places: Iterator[str]) -> str:
    return next(places)


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    with starter() as start:
        yield start
