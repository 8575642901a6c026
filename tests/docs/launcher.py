"""``torchrun`` for the commands of the pages: the ranks fork from the tests' server, and need not import torch anew.

It is a program of that name on PATH, which asks the test over a socket; what the ranks find is what torchrun gives
them. torchrun itself starts the README's script, in tests/house/test_readme.py.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist

from gradwire.testing.processes import RankFailedError, run_ranks
from tests.docs.stage import Absent, run_file

DEADLINE = 500.0
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.settimeout({deadline})
    asked.connect({place!r})
    asked.sendall(json.dumps({{"folder": os.getcwd(), "arguments": sys.argv[1:]}}).encode())
    asked.shutdown(socket.SHUT_WR)
    with asked.makefile() as file:
        said = json.load(file)
print(said["out"], end="")
print(said["err"], end="", file=sys.stderr)
sys.exit(bool(said["err"]))
"""


class Torchrun:
    """A folder with the program ``torchrun``; use it as a context.

    Args:
        folder: where the program lies, and its socket.
        absent: what its ranks lack.
    """

    def __init__(self, folder: Path, absent: Absent) -> None:
        self.absent = absent
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(folder / "socket"))
        self.server.listen()
        program = folder / "torchrun"
        program.write_text(CLIENT.format(python=sys.executable, place=str(folder / "socket"), deadline=DEADLINE + 30))
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
                json.dump(self.answer(**json.load(file)), file)

    def answer(self, folder: str, arguments: list[str]) -> dict[str, str]:
        """Run the script; what its ranks printed, one after the other, and their errors."""
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
            return {"out": "", "err": f"{error}\n"}
        return {"out": "".join(said), "err": ""}
