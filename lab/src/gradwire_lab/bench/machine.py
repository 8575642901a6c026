"""Description of the machine on which a figure was measured, without which no figure means anything."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from gradwire.kernels.native import kernel_info
from gradwire.version import __version__

__all__ = ["busy_seconds", "commit", "cores", "crowded", "environment", "machine"]


def environment() -> dict[str, object]:
    """The columns that every row of a benchmark carries, for the current number of threads."""
    return {
        "threads": torch.get_num_threads(),
        "target": kernel_info()["target"] or "reference",
        "machine": machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gradwire": __version__,
        "commit": commit(),
    }


@cache
def machine() -> str:
    """The processor, the number of cores that this process may use, and the system."""
    return f"{_processor()}, {cores()} cores, {platform.system()} {platform.machine()}"


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def crowded(threads: int) -> Callable[[], float]:
    """Make a clock for one of so many threads that all compute at the same time.

    Where there is a core for each, it is the wall clock. Else it is the processor time of the calling thread, times
    threads over cores: the wall clock would not see what a thread waits before its work begins, and most pieces of work
    are shorter than what the system gives a thread at a time.

    Args:
        threads: number of threads in all, on this machine.
    """
    share = threads / cores()
    return time.perf_counter if share <= 1 else lambda: share * time.thread_time()


def busy_seconds() -> float:
    """Processor time that this machine has spent since it started, network interrupts included; 0 if the system does
    not tell.
    """
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    idle, waiting = ticks[3:5]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


@cache
def commit() -> str | None:
    """The commit of this source tree, with "-dirty" if files differ from it; None for an installed wheel."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _processor() -> str:
    """The processor's name in /proc/cpuinfo, or else the one that the system reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
