"""Ctrl-C while the command is still being loaded, which takes seconds: one line and 130, as later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv = ['gradwire', 'meeting', '--bind', '127.0.0.1:0']; from gradwire.cli.main import main; "
    "print('here', flush=True); main()"
)


def mapped(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def heard() -> None:
    """A process that is started in the background ignores Ctrl-C otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.timeout(400)
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
@pytest.mark.parametrize(
    ("how", "moment"),
    [
        (["-c", COMMAND], "libtorch_cpu"),
        (["-c", COMMAND], "_multiarray_umath"),
        (["-m", "gradwire", "doctor"], "libtorch_cpu"),
    ],
)
def test_ctrl_c_while_it_is_loaded_is_one_line(how: list[str], moment: str) -> None:
    """While torch is imported, and while it imports numpy."""
    process = subprocess.Popen(
        [sys.executable, *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heard,
    )
    try:
        assert process.stdout is not None
        if how[0] == "-c":
            assert process.stdout.readline() == "here\n"
        deadline = time.monotonic() + 200
        while not mapped(process.pid, moment):
            assert time.monotonic() < deadline, f"{moment} was never loaded"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "stopped\n"), out


def test_ctrl_c_in_a_callback_of_the_import_system_is_not_lost() -> None:
    """Python prints and forgets what is raised there; it once left a command running that had been told to stop."""
    program = (
        "import signal, weakref; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from gradwire.cli._interrupt import end_on_interrupt, interrupt_again\n"
        "class Lock: pass\n"
        "def forgotten():\n"
        "    lock = Lock()\n"
        "    reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "    del lock\n"
        "{}()\n"
        "forgotten()\n"
        "print('went on', flush=True)\n"
    )
    for handler, expected in (("end_on_interrupt", (130, "", "stopped\n")), ("interrupt_again", (0, "went on\n"))):
        command = [sys.executable, "-c", program.format(handler)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr)[: len(expected)] == expected


LOSING = """
import os, signal, sys, weakref

class Lock:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            lock = Lock()
            reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))
            del lock

sys.meta_path.insert(0, Finder())
"""
"""Ctrl-C in a callback, when a module is looked for."""


@pytest.mark.parametrize("at", ["torch", "click", "rich", "gradwire.cli._folder", "gradwire.cli.commands.doctor"])
def test_ctrl_c_is_not_lost_before_a_subcommand_is_loaded(at: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOSING, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "gradwire", "doctor"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPTED_AT": at},
        preexec_fn=heard,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped\n")


def test_the_command_that_is_installed_is_this_one() -> None:
    command = Path(sys.executable).parent / "gradwire"
    assert "from gradwire.cli.main import main" in command.read_text(encoding="utf-8")
