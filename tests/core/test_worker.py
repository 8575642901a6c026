"""One thread, in order, and no life after a failure."""

import gc
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.futures import Future

from gradwire.errors import ConfigError
from gradwire.worker import Worker, _open, _under_way


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


def test_what_a_job_starts_may_end_long_after_the_next_has_run() -> None:
    worker, slow, quick = Worker(), Future[torch.Tensor](), Future[torch.Tensor]()
    started = worker.submit_start(lambda: slow)
    assert int(worker.submit(lambda: torch.tensor(1)).wait()) == 1
    assert not started.done()
    quick.set_result(torch.tensor(2))
    assert int(worker.submit_start(lambda: quick).wait()) == 2
    slow.set_result(torch.tensor(3))
    assert int(started.wait()) == 3
    worker.close()


@pytest.mark.parametrize("posted", [True, False])
def test_the_failure_of_what_a_job_starts_or_of_its_start_is_heard_of(posted: bool) -> None:
    """A sum that was started fails alone, and later jobs run all the same."""
    worker, broken = Worker(), Future[torch.Tensor]()

    def start() -> Future[torch.Tensor]:
        if not posted:
            raise ValueError("the wire was cut")
        return broken

    started = worker.submit_start(start)
    if posted:
        broken.set_exception(ValueError("the wire was cut"))
    with pytest.raises(Exception, match="the wire was cut"):
        started.wait()
    later = worker.submit(lambda: torch.tensor(1))
    if posted:
        assert int(later.wait()) == 1
    else:
        with pytest.raises(Exception, match="an earlier exchange failed: the wire was cut"):
            later.wait()
    worker.close()


def test_nothing_is_started_when_the_process_ends() -> None:
    worker, gate, begun = Worker(), threading.Event(), []

    def wait() -> torch.Tensor:
        gate.wait(5.0)
        return torch.zeros(1)

    def start() -> Future[torch.Tensor]:
        begun.append(True)
        return Future[torch.Tensor]()

    worker.submit(wait)
    started = worker.submit_start(start)
    threading.Timer(0.1, gate.set).start()
    key = id(worker)
    _open[key]()
    with pytest.raises(Exception, match="the process ends"):
        started.wait()
    assert begun == []
    del started, worker
    gc.collect()
    assert key not in _open


PROGRAM = """
import sys, threading, time
import torch
from torch.futures import Future
from gradwire.worker import Worker

worker, late = Worker(), Future()
started = worker.submit_start(lambda: late)
started.then(lambda done: print("ended with", int(done.wait()), flush=True))
threading.Thread(target=lambda: (time.sleep(0.3), late.set_result(torch.tensor(3))), daemon=True).start()
worker.submit(lambda: torch.zeros(1)).wait()
sys.exit(7)
"""


def test_the_process_ends_after_what_is_under_way() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "ended with 3\n", "")


FORKS = """
import os, sys, time
import torch
from torch.futures import Future
from gradwire.worker import Worker

worker, never = Worker(), Future()
started = worker.submit_start(lambda: never)
worker.submit(lambda: torch.zeros(1)).wait()
child = os.fork()
began = time.monotonic()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
import atexit
atexit._run_exitfuncs()
os._exit(0 if time.monotonic() - began < 1 else 1)
"""


def test_a_process_that_is_forked_waits_for_nothing_of_its_parent() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False).returncode == 0


def test_a_worker_that_is_closed_leaves_nothing_to_wait_for() -> None:
    worker, before = Worker(), set(_under_way)
    worker.submit(lambda: torch.zeros(1)).wait()
    worker.close()
    with pytest.raises(ConfigError, match=r"after close\(\)"):
        worker.submit_start(lambda: Future[torch.Tensor]())
    assert before == _under_way
