"""``torchrun``, ``gradwire`` and ``python`` for the commands of the pages: they fork from the tests' server, and need
not import torch anew.

They are programs of these names on PATH, which ask the test over a socket; what the ranks find is what torchrun gives
them. torchrun itself starts the README's script, in tests/house/test_readme.py.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Self

import torch.distributed as dist

from gradwire.testing.processes import RankFailedError, run_ranks
from tests.docs.stage import Absent, enter, run_file
from tests.forked import Forked

DEADLINE = 500.0
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.settimeout({deadline})
    asked.connect({place!r})
    asked.sendall(json.dumps([{program!r}, os.getcwd(), dict(os.environ), sys.argv[1:]]).encode())
    asked.shutdown(socket.SHUT_WR)
    with asked.makefile() as file:
        said = json.load(file)
print(said["out"], end="")
print(said["err"], end="", file=sys.stderr)
sys.exit(said["code"])
"""


class Programs:
    """A folder with the programs; use it as a context.

    Args:
        folder: folder of the programs and of their socket.
        absent: modules that they lack.
    """

    def __init__(self, folder: Path, absent: Absent) -> None:
        self.absent = absent
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(folder / "socket"))
        self.server.listen()
        for name in ("torchrun", "gradwire", "python"):
            program, place = folder / name, str(folder / "socket")
            told = CLIENT.format(python=sys.executable, place=place, deadline=DEADLINE + 30, program=name)
            program.write_text(told)
            program.chmod(0o755)
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.thread.join(DEADLINE)
        self.server.close()

    def serve(self) -> None:
        while True:
            try:
                asked, _ = self.server.accept()
            except OSError:
                return
            with asked, asked.makefile("rw") as file:
                json.dump(self.answer(*json.load(file)), file)

    def answer(
        self, program: str, folder: str, environment: dict[str, str], arguments: list[str]
    ) -> dict[str, str | int]:
        """Run the program; what it printed, its errors and its exit code."""
        if program == "torchrun":
            return self.ranks(folder, arguments)
        called = ["-m", "gradwire", *arguments] if program == "gradwire" else arguments
        process = Forked(called, environment, PIPE, PIPE, partial(enter, folder, self.absent))
        out, err = process.communicate(DEADLINE)
        return {"out": out, "err": err, "code": process.returncode}

    def ranks(self, folder: str, arguments: list[str]) -> dict[str, str | int]:
        """Run programs as torchrun does, and return what the ranks printed, one after the other."""
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--nproc-per-node", type=int, required=True)
        parser.add_argument("script", nargs=argparse.REMAINDER)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            given = parser.parse_args(arguments)
            said = run_ranks(
                given.nproc_per_node, run_file, store.port, given.script, self.absent, folder, timeout=DEADLINE
            )
        except (argparse.ArgumentError, RankFailedError) as error:
            return {"out": "", "err": f"{error}\n", "code": 1}
        return {"out": "".join(said), "err": "", "code": 0}
