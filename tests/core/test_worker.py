"""One thread, in order, and no life after a failure."""

import gc
import subprocess
import sys
import threading
import time

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire.transport.worker import Worker, _open


def test_jobs_run_in_order_on_another_thread() -> None:
    worker, seen = Worker(), []

    def job(i: int) -> torch.Tensor:
        time.sleep(0.002 * (5 - i))
        seen.append((i, threading.get_ident()))
        return torch.tensor(i)

    futures = [worker.submit(lambda i=i: job(i)) for i in range(5)]
    assert [int(future.wait()) for future in futures] == [0, 1, 2, 3, 4]
    assert [i for i, _ in seen] == [0, 1, 2, 3, 4]
    assert {ident for _, ident in seen} != {threading.get_ident()}
    worker.close()


def test_everything_after_a_failure_fails_with_the_first_error() -> None:
    worker, ran = Worker(), []
    gate = threading.Event()

    def broken() -> torch.Tensor:
        gate.wait(5.0)
        raise ValueError("the wire was cut")

    first = worker.submit(broken)
    second = worker.submit(lambda: ran.append(1) or torch.zeros(1))
    gate.set()
    with pytest.raises(Exception, match="the wire was cut"):
        first.wait()
    with pytest.raises(Exception, match="an earlier exchange failed: the wire was cut"):
        second.wait()
    with pytest.raises(Exception, match="an earlier exchange failed: the wire was cut"):
        worker.submit(lambda: torch.zeros(1)).wait()
    assert not ran
    worker.close()


def test_the_thread_uses_as_many_cpu_threads_as_its_maker() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        worker = Worker()
        assert int(worker.submit(lambda: torch.tensor(torch.get_num_threads())).wait()) == 1
        worker.close()
    finally:
        torch.set_num_threads(before)


def test_nothing_runs_after_close() -> None:
    worker = Worker()
    worker.submit(lambda: torch.zeros(1)).wait()
    worker.close()
    with pytest.raises(ConfigError, match=r"state must be open .* got one after close\(\)"):
        worker.submit(lambda: torch.zeros(1))


def test_a_worker_that_is_collected_or_closed_is_forgotten() -> None:
    for closes in (True, False):
        worker = Worker()
        worker.submit(lambda: torch.zeros(1)).wait()
        key = id(worker)
        assert key in _open
        if closes:
            worker.close()
        del worker
        gc.collect()
        assert key not in _open


PROGRAM = """
import time, weakref
import torch
from gradwire.transport.worker import Worker

def give_up():
    raise RuntimeError("dictionary changed size during iteration")

weakref.finalize._select_for_exit = give_up
worker = Worker()
worker.submit(lambda: (time.sleep(0.5), print("done", flush=True)) and torch.zeros(1))
"""


def test_the_thread_ends_before_the_process_even_where_weakref_gives_up() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n")
