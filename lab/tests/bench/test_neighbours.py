"""Busy neighbours end, whatever happens to who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.bench.neighbours import neighbours

PROGRAM = """
from gradwire_lab.bench.neighbours import neighbours
with neighbours(2) as ids:
    print(*ids, flush=True)
    input()
"""


def runs(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(numbers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(runs, numbers)):
        assert time.monotonic() < deadline, numbers
        time.sleep(0.05)


def test_they_run_within_the_block_alone() -> None:
    with neighbours(2) as numbers:
        assert len(set(numbers)) == 2
        assert all(map(runs, numbers))
    assert not any(map(runs, numbers))


def test_they_end_where_the_block_fails() -> None:
    with pytest.raises(KeyError), neighbours(1) as numbers:
        raise KeyError
    assert not any(map(runs, numbers))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.timeout(200)
def test_they_end_with_a_process_that_is_killed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    numbers = [int(word) for word in process.stdout.readline().split()]
    assert len(numbers) == 2
    assert all(map(runs, numbers))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until_gone(numbers)
    process.stdin.close()
    process.stdout.close()


def test_a_count_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"busy must be an integer in \[0, 256\], got -1"), neighbours(-1):
        pass
