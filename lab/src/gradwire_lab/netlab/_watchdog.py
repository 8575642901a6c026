"""A program that takes a lab away: its processes, its namespaces and its record.

    python -I -S _watchdog.py ID FD       wait until the process of the descriptor has ended, then remove the lab

Invariants:
    This file imports the standard library alone.

Why:
    It is a module of the package, and also the script of the process that watches over a lab. That process must be
    there within milliseconds and stay small, and importing torch takes seconds.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["NAMESPACES", "PREFIX", "RECORDS", "born", "leftovers", "record", "records", "remove"]

PREFIX = "gw-"
NAMESPACES = Path("/run/netns")
RECORDS = Path("/run/gradwire-netlab")
HOSTS = Path("/etc/netns")

_DEADLINE = 10.0


def record(lab: str, facts: dict[str, Any]) -> None:
    """Record a lab and its owner, replacing an older record atomically."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    draft = RECORDS / f".{lab}.{os.getpid()}"
    draft.write_text(json.dumps(facts), encoding="utf-8")
    draft.replace(RECORDS / f"{lab}.json")


def records() -> dict[str, dict[str, Any]]:
    """Read the record of every lab, by id."""
    found = {}
    for file in sorted(RECORDS.glob("*.json")):
        try:
            found[file.stem] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # Taken away meanwhile.
            continue
    return found


def leftovers() -> list[str]:
    """The labs whose owner has ended without taking them away; a lab that was made to stay has no owner."""
    return [lab for lab, facts in records().items() if facts["owner"] and born(facts["owner"]) != facts["born"]]


def born(pid: int) -> int | None:
    """The time at which a process began, in ticks since the machine's start; with the process number it is unique.

    None where it has ended, whether or not anybody has asked how.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def remove(lab: str) -> None:
    """End every process inside a lab's namespaces, delete these and the record; a part that is gone already is no
    error.

    Raises:
        OSError: a part of the lab is still there after 10 seconds.
    """
    deadline = time.monotonic() + _DEADLINE
    while there := namespaces(lab):
        for name in there:
            end_processes(name)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False, timeout=_DEADLINE)
            shutil.rmtree(HOSTS / name, ignore_errors=True)
        if time.monotonic() > deadline:
            raise OSError(f"the namespaces {', '.join(namespaces(lab))} cannot be deleted")
    (RECORDS / f"{lab}.json").unlink(missing_ok=True)


def namespaces(lab: str) -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"{PREFIX}{lab}-*"))


def end_processes(namespace: str) -> None:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=_DEADLINE)
    for pid in listed.stdout.split():
        if int(pid) != os.getpid():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue


def watch(lab: str, owner: int) -> None:
    """Wait for the end of the process whose descriptor is ``owner``; a descriptor, unlike a number, cannot mean another
    process.
    """
    watched = select.poll()
    watched.register(owner, select.POLLIN)
    watched.poll()
    remove(lab)


if __name__ == "__main__":
    watch(sys.argv[1], int(sys.argv[2]))
