"""Workers start, answer, and always end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.errors import ConfigError, GroupError
from gradwire_lab.experiments.launch import OutOfTimeError, launch, raises
from lab.tests.experiments.jobs import fail_on_one, interrupt_launcher, meet
from tests.forked import fork_workers


@pytest.fixture(autouse=True)
def forked_workers(one_thread: None) -> None:
    """Here workers have interpreters of their own, as they have wherever a user starts them, unless a test says so."""


def children() -> set[str]:
    """Our processes that run a worker, by process id."""
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if "spawn_main" in line}


def alive(folder: Path) -> dict[int, bool]:
    """The workers that left their process id in the folder, and whether they are still there."""
    return {int(path.name): Path("/proc", path.name).exists() for path in folder.iterdir()}


def test_workers_form_a_group_of_one_thread_each_and_an_end_that_is_far_disturbs_nobody() -> None:
    assert launch(2, meet, 10, until=time.time() + 1e12) == [(0, 1, 21.0), (1, 1, 21.0)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "said", "timeout"),
    [
        ("raise", "worker 1 failed: ValueError: the disk is full", 200.0),
        ("die", "worker 1 died: Signal 9", 200.0),
        # Both must have come to the group within this time, too: they fork, and that is soon.
        ("stall", "worker 0 failed: .*[Tt]imed out", 4.0),
    ],
)
def test_a_failing_worker_ends_all_and_is_named(
    how: str, said: str, timeout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The death of a forked worker is seen later than that the other one has lost it.
    if how != "die":
        fork_workers(monkeypatch)
    with pytest.raises(GroupError, match=said):
        launch(2, fail_on_one, how, tmp_path, timeout=timeout)
    assert len(alive(tmp_path)) == 2
    assert not any(alive(tmp_path).values())


def test_an_interrupt_stops_all_workers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        launch(2, interrupt_launcher)
    assert not children()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_end_of_the_time_stops_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_workers(monkeypatch)
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(OutOfTimeError, match=r"the time was over at .*: the workers were stopped"):
        launch(2, fail_on_one, "stall", tmp_path, timeout=1000.0, until=time.time() + 3)
    assert not any(alive(tmp_path).values())
    assert signal.getsignal(signal.SIGUSR1) is before


def test_refuses_a_number_of_workers_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="workers must be an integer >= 1, got 0"):
        launch(0, meet, 1)


class Interrupts:
    """Interrupts this process when it is sent to a worker, which is when the worker is being started."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        signal.raise_signal(signal.SIGUSR2)
        return int, ()


def test_a_worker_that_is_being_started_is_told_what_to_run_before_the_interrupt_comes() -> None:
    before = signal.signal(signal.SIGUSR2, raises(KeyboardInterrupt))
    worker = multiprocessing.get_context("spawn").Process(target=abs, args=(Interrupts(),))
    started: list[bool] = []

    def start() -> None:
        worker.start()
        started.append(True)
        time.sleep(60)

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert started
    worker.join(200)
    assert worker.exitcode == 0


def test_workers_that_the_launcher_does_not_know_of_yet_are_stopped_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start = torch.multiprocessing.start_processes
    running: list[int] = []

    def start_and_interrupt(*args: Any, **kwargs: Any) -> Any:
        context = start(*args, **kwargs)
        running.extend(context.pids())
        signal.raise_signal(signal.SIGUSR2)
        return context

    monkeypatch.setattr(torch.multiprocessing, "start_processes", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(2, meet, 10)
    assert len(running) == 2
    assert not any(Path("/proc", str(pid)).exists() for pid in running)
    assert "Traceback" not in capfd.readouterr().err
