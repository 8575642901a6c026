"""Where a figure was measured: without it, no figure means anything."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from gradwire.ops.native import kernel_info
from gradwire.version import __version__

__all__ = ["commit", "cores", "environment", "machine"]


def environment() -> dict[str, object]:
    """The columns that every row of a benchmark carries, at the present number of threads."""
    return {
        "threads": torch.get_num_threads(), "target": kernel_info()["target"] or "reference", "machine": machine(),
        "torch": torch.__version__, "gradwire": __version__, "commit": commit(),
    }  # fmt: skip


@cache
def machine() -> str:
    """Processor, cores this process may use, and system."""
    return f"{_processor()}, {cores()} cores, {platform.system()} {platform.machine()}"


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def commit() -> str | None:
    """The commit of this source tree, "-dirty" where files differ from it; None for an installed wheel."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _processor() -> str:
    """The name that /proc/cpuinfo gives, or what the system calls it."""
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
