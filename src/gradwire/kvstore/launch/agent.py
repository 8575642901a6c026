"""A program that runs a command for as long as stdin stays open; ``gradwire launch`` starts it on other machines.

The first line of stdin is JSON: {"command": [...], "environment": {...}, "folder": ..., "grace": seconds, "silence":
seconds or null}, so that neither goes through a shell or can be read in a list of processes. When stdin ends, because
the launcher ended, or the connection did, the command and all that it started are asked to end, and after ``grace``
ended. So they are when nothing comes for ``silence``: a machine or a network that is gone ends no connection. The text
of this file is the program; the other machine's python needs nothing but the standard library for it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any

__all__ = ["main"]


def main() -> int:
    """Run the command from stdin; return its exit code, 128 + n after signal n, 127 if it could not be started."""
    # Without a buffer: the thread that waits for the end of stdin must not hold its lock when this process ends.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        told = json.loads(stdin.readline())
    try:
        process = subprocess.Popen(
            told["command"],
            env={**os.environ, **told["environment"]},
            cwd=told["folder"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        # Only stderr and the exit code travel back over ssh.
        sys.stderr.write(f"{told['command'][0]} in {told['folder']}: {error}\n")
        return 127
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: tell_all(process, number))
    threading.Thread(target=end_with_stdin, args=(process, told["grace"], told["silence"]), daemon=True).start()
    code = process.wait()
    if code:
        # What the command has started may still run, and nobody would end it later.
        tell_all(process, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def end_with_stdin(process: "subprocess.Popen[bytes]", grace: float, silence: "float | None") -> None:
    """Wait until stdin ends or nothing comes for ``silence`` seconds, and then end all that was started."""
    while select.select([0], [], [], silence)[0] and os.read(0, 4096):
        pass
    tell_all(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        # The command has some time to save its state.
        process.wait(grace)
    tell_all(process, signal.SIGKILL)


def tell_all(process: "subprocess.Popen[bytes]", number: Any) -> None:
    """Send a signal to the command and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main())
