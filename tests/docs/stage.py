"""Ranks on which the code of the pages runs, and that find what torchrun gives them, and nothing else.

The ranks fork from a server that has torch loaded, and so start in milliseconds.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from tests.absent.sitecustomize import hide

Absent = tuple[list[str], list[str]]
"""Modules and distributions, as ``tests.extras.hidden`` gives them."""


def run_blocks(rank: int, steps: list[tuple[str, str, int | None, Absent]], folder: str) -> list[str]:
    """Run a page's blocks, and return what each printed.

    Args:
        steps: place, code, the port of the store at which its ranks meet if the block begins a script, what is absent.
        folder: folder of the page.
    """
    begin(rank, folder)
    known, printed = {"__name__": "__main__"}, []
    for place, code, port, absent in steps:
        leave_out(absent)
        if port is not None:
            end()
            # torch destroys a Gloo group with the GIL held, and then waits for a thread that needs it to free the last
            # all-reduce. The group goes with the model, so that thread must have been through before.
            time.sleep(0.2)
            known = {"__name__": "__main__"}
            # Where an earlier script's ranks met, their addresses are left, and who finds them waits for ever.
            os.environ["MASTER_PORT"] = str(port)
        printed.append(execute(code, place, known))
    end()
    time.sleep(0.2)
    return printed


def run_file(rank: int, port: int, arguments: list[str], absent: Absent, folder: str) -> str:
    """Run a script with its arguments as torchrun does, and return what it printed."""
    begin(rank, folder)
    os.environ["MASTER_PORT"] = str(port)
    leave_out(absent)
    file = Path(arguments[0])
    sys.argv, sys.path = arguments, [str(file.resolve().parent), *sys.path]
    try:
        said = execute(file.read_text(encoding="utf-8"), str(file), {"__name__": "__main__", "__file__": str(file)})
    finally:
        # A process of multiprocessing ends without it, and then what a script has started would stay.
        atexit._run_exitfuncs()
    end()
    return said


def enter(folder: str, absent: Absent) -> None:
    """Prepare a forked program."""
    os.chdir(folder)
    leave_out(absent)


def leave_out(absent: Absent) -> None:
    """Hide them, those that are loaded, too: the server from which the ranks fork may have needed them."""
    for name in [name for name in sys.modules if name.partition(".")[0] in absent[0]]:
        del sys.modules[name]
    hide(*absent)


def begin(rank: int, folder: str) -> None:
    """Give up the group that the ranks have come with: scripts form their own."""
    world = dist.get_world_size()
    dist.barrier()  # A rank that left now would cut off one that is still connecting.
    dist.destroy_process_group()
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "pages",
    }


def end() -> None:
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def execute(code: str, place: str, known: dict) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), known)
    return printed.getvalue()
