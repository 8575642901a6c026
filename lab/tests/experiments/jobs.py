"""Work of the workers in the launcher's tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradwire_lab.experiments import sweep
from gradwire_lab.experiments.job import Job
from gradwire_lab.experiments.sweep import Order, serve
from tests.forked import fork_workers

LANE = sweep.lane


def meet(offset: int) -> tuple[int, int, float]:
    total = torch.tensor([float(dist.get_rank() + offset)])
    dist.all_reduce(total)
    return dist.get_rank(), torch.get_num_threads(), total.item()


def fail_on_one(how: str, folder: Path | None = None) -> None:
    """Worker 1 fails while worker 0 waits for it; both leave their process id in the folder."""
    if folder is not None:
        (folder / str(os.getpid())).touch()
    if dist.get_rank() == 1 and how != "stall":
        # Worker 0 is ended as soon as this one has failed.
        while folder is not None and len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
    if dist.get_rank() == 1 and how == "raise":
        raise ValueError("the disk is full")
    if dist.get_rank() == 1 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 1 and how == "stall":
        threading.Event().wait()
    dist.barrier()


def interrupt_launcher() -> None:
    """Worker 0 does what a person does with Ctrl-C."""
    if dist.get_rank() == 0:
        os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait()


def die_after_runs(order: Order, jobs: Sequence[Job], begun: Path) -> None:
    """Run as a worker of a sweep whose group ends badly when its runs have ended."""
    serve(order, jobs, begun)
    fail_on_one("die")


def forking_lane(order: Order, left: Sequence[Job]) -> None:
    """Run ``sweep.lane`` in a process of its own, whose workers fork."""
    fork_workers(pytest.MonkeyPatch())
    sweep.GRACE = 1.0
    LANE(order, left)


def threads_after_runs(order: Order, begun: Path) -> list[int]:
    """The threads of this process after each run; Linux only."""
    counts = []
    for job in order.jobs:
        serve(order, [job], begun)
        counts.append(len(os.listdir("/proc/self/task")))
    return counts
