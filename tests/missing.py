"""The last lines of a run: what was not tested for want of something, and how to get it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

WANTED: tuple[tuple[str, str, str], ...] = (
    ("CUDA device", "GPU kernels and NCCL on a GPU", "an NVIDIA GPU and torch's CUDA build"),
    ("triton is not installed", "GPU kernels in Triton's interpreter and compiler", "make test-frameworks"),
    ("torchft is not installed", "replicas under torchft", "make test-frameworks"),
    ("torchtitan is not installed", "torchtitan's trainer", "make test-frameworks"),
    ("Chrome or Chromium", "the report in a browser", "apt-get install chromium"),
    ("sshd", "gradwire launch over ssh", "apt-get install openssh-server"),
    ("MXNet cannot be installed", "peers and figures of MXNet itself", "the network and a Python of MXNet's"),
    ("actionlint", "the workflows", "actionlint on PATH"),
    (r"namespace|iproute2|\btc\b|root", "emulated networks", "root, iproute2 and network namespaces"),
    (r"kernels|C\+\+|torch reference", "the C++ kernels", "a C++ compiler, then make clean"),
    ("no address but loopback", "a rendezvous by the machine's own address", "a network interface"),
    (r"could not import|extra .* is not installed", "what needs an optional package", "make clean, then make test"),
    (r"/proc|glibc|C library|Linux|system does not tell", "threads and memory in /proc", "Linux with glibc"),
)
"""Pattern of the reasons why tests are skipped, what is then not tested, and what it takes."""

NOT_WANTING = re.compile("its residual bounds what is missing|there is nothing to compare")
"""Reasons of tests that do not apply, wherever they run."""


def lines_of(reasons: list[str]) -> list[str]:
    """One line for each thing that is missing, with the number of tests that wanted it; unknown reasons as they are.

    >>> lines_of(["there is no CUDA device", "no CUDA device here", "the moon is full"])
    ["GPU kernels and NCCL on a GPU: 2 tests (takes an NVIDIA GPU and torch's CUDA build)", 'the moon is full: 1 test']
    """
    counts: Counter[str] = Counter()
    for reason in reasons:
        if not NOT_WANTING.search(reason):
            thing = next((f"{what}|{takes}" for pattern, what, takes in WANTED if re.search(pattern, reason)), reason)
            counts[thing] += 1
    return [_line(thing, number) for thing, number in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]


def _line(thing: str, number: int) -> str:
    what, _, takes = thing.partition("|")
    tests = f"{number} test" if number == 1 else f"{number} tests"
    return f"{what}: {tests} (takes {takes})" if takes else f"{what}: {tests}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Under xdist, too: the reports of all workers come together here."""
    reasons = []
    for report in terminalreporter.stats.get("skipped", []):
        told = report.longrepr
        reasons.append(str(told[2] if isinstance(told, tuple | list) else told).removeprefix("Skipped: "))
    for line in lines_of(reasons):
        terminalreporter.write_line(f"not tested here: {line}")
