"""How the code of the pages runs: on ranks that find what torchrun gives them, and nothing else.

The ranks fork from a server that has torch loaded, and so start in milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from pathlib import Path

import torch.distributed as dist

from tests.absent.sitecustomize import hide

Absent = tuple[list[str], list[str]]
"""Modules and distributions, as ``tests.extras.hidden`` gives them."""


def run_blocks(rank: int, port: int, steps: list[tuple[str, str, bool, Absent]], folder: str) -> list[str]:
    """Run a page's blocks, (place, code, whether it stands alone, what is absent), and return what each printed."""
    begin(rank, port, folder)
    known, printed = {"__name__": "__main__"}, []
    for number, (place, code, alone, absent) in enumerate(steps):
        hide(*absent)
        if alone:
            end()
            known = {"__name__": "__main__"}
        # It is a part of the names under which the ranks of a group find each other.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        printed.append(execute(code, place, known))
    end()
    return printed


def run_file(rank: int, port: int, arguments: list[str], absent: Absent, folder: str) -> str:
    """Run a script with its arguments as torchrun does, and return what it printed."""
    begin(rank, port, folder)
    hide(*absent)
    file = Path(arguments[0])
    sys.argv, sys.path = arguments, [str(file.resolve().parent), *sys.path]
    try:
        return execute(file.read_text(encoding="utf-8"), str(file), {"__name__": "__main__", "__file__": str(file)})
    finally:
        # A process of multiprocessing ends without it, and then what a script has started would stay.
        atexit._run_exitfuncs()
        end()


def begin(rank: int, port: int, folder: str) -> None:
    """Give up the group that the ranks have come with: scripts form their own."""
    world = dist.get_world_size()
    dist.barrier()  # A rank that left now would cut off one that is still connecting.
    dist.destroy_process_group()
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "pages",
    }  # fmt: skip


def end() -> None:
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def execute(code: str, place: str, known: dict) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), known)
    return printed.getvalue()
