"""The command of ``gradwire run`` as a child: signals reach it, and its exit status is this process's."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from gradwire.errors import ConfigError
from gradwire.run.session import REPORT, SEEN, SENTINEL, VARIABLE, say, verdict

__all__ = ["run_command"]

FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGINT")
    if hasattr(signal, name)
]


def run_command(command: Sequence[str], mode: str, report: Path, sentinel: int) -> int:
    """Run a command with what lets gradwire take part, and say in a line what was seen if nothing else has.

    Args:
        command: program and arguments.
        mode: "watch" or "apply".
        report: path of the report, without its end.
        sentinel: compressed steps from one exact mean to the next.

    Returns:
        Its exit status, which is negative after a signal.

    Raises:
        ConfigError: the program cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-run-") as folder:
        own = {VARIABLE: mode, SEEN: folder, REPORT: str(report.absolute()), SENTINEL: str(sentinel)}
        try:
            child = subprocess.Popen(command, env={**os.environ, **own})
        except OSError as error:
            raise ConfigError(f"COMMAND must be a program that can be started, got {command[0]!r}: {error}") from error

        def forward(number: int, _: FrameType | None) -> None:
            # Ctrl-C goes to all processes of a terminal, and the script is to hear of it once.
            if number not in (signal.SIGINT, signal.SIGQUIT) or not in_foreground():
                child.send_signal(number)

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            status = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        events, steps = seen_in(Path(folder))
    ended = f"the script ended with {end_text(status)}" if status else ""
    said = "; ".join(filter(None, (ended, verdict(events, steps, "told" in events))))
    if said and os.environ.get("RANK", "0") == "0":
        say(said)
    return status


def end_text(status: int) -> str:
    """The end of a process in words.

    >>> end_text(7), end_text(-15), end_text(-40)
    ('exit status 7', 'SIGTERM', 'signal 40')
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time signal, which has no name
        return f"signal {-status}"


def in_foreground() -> bool:
    """Return whether a terminal sends its signals to this process, and so to its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def seen_in(folder: Path) -> tuple[set[str], int]:
    """Bring together what all processes have seen, and the most steps of one."""
    events, steps = set[str](), 0
    for file in folder.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, detail = line.partition(" ")
            events.add(name)
            if name == "steps" and detail.isdigit():
                steps = max(steps, int(detail))
    return events, steps
