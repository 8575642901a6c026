"""Ctrl-C in a terminal, which reaches every process of the command: one line, exit code 130, and nobody is left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gradwire.cli.main import main
from tests.forked import context

MAIN = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
CALL = "from gradwire.cli.main import main; main()"
STAY = "import time; print('here', flush=True); time.sleep(600)"
CASES = {
    "demo": (["demo"], "workers"),
    "train": (["train", "classification"], "workers"),
    "sweep": (["sweep", "FOLDER/suite.toml", "--results", "FOLDER/results.jsonl"], "workers"),
    "replay": (["replay", "lstm", "--small", "--workers", "2", "--baseline", "--steps", "1000000"], "workers"),
    "check": (["check", "soak", "--minutes", "60", "--workers", "2"], "workers"),
    "advise": (["advise", "--model", "resnet20", "--within", "900"], "workers"),
    "bench": (["bench", "codec", "--repeats", "1000", "--size", "4096"], "triad"),
    "launch": (["launch", "-n", "2", "--", sys.executable, "-c", STAY], "here"),
    "server": (["server", "--workers", "1"], "listening on"),
    "meeting": (["meeting", "--bind", "127.0.0.1:0"], "meeting place at"),
}
"""Arguments, and what shows that the work is under way: a line, or processes that were started."""


class Interpreter(subprocess.Popen):
    """``gradwire *arguments`` in a session of its own, as a terminal starts it."""

    def __init__(self, arguments, out, err):
        with out.open("w") as stdout, err.open("w") as stderr:
            super().__init__(
                [sys.executable, "-c", f"{MAIN}sys.argv = ['gradwire', *{arguments!r}]; {CALL}"],
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )


class Fork:
    """The same, from a process that has imported torch: for what starts no workers."""

    def __init__(self, arguments, out, err):
        self._process = context().Process(target=be_the_command, args=(arguments, out, err))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout):
        self._process.join(timeout)
        return self.poll()


def be_the_command(arguments, out, err):
    os.setsid()
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["gradwire", *arguments]
    main()


def children(pid):
    """All processes below one, with what they run."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            if parent == pid:
                found += [int(entry), *children(int(entry))]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def wait_for(what, process, out):
    """Until the work is under way."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, out.read_text()
        if what == "workers" and len(children(process.pid)) >= 2:
            return
        if out.exists() and what in out.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come: {out.read_text()}")


@pytest.mark.timeout(400)
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
@pytest.mark.parametrize("name", CASES)
def test_ctrl_c_is_one_line_and_130(name, tmp_path):
    arguments, what = CASES[name]
    (tmp_path / "suite.toml").write_text('tasks = ["classification"]\nmethods = ["none"]\nseeds = 9\n')
    arguments = [each.replace("FOLDER", str(tmp_path)) for each in arguments]
    out, err = tmp_path / "out", tmp_path / "err"
    process = (Interpreter if what == "workers" else Fork)(arguments, out, err)
    try:
        wait_for(what, process, out)
        below = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 130, err.read_text()
        lines = [line for line in err.read_text().splitlines() if line.strip()]
        said = "stopped before an epoch had ended" if name == "train" else "stopped"
        assert [line.partition(";")[0] for line in lines] == [said], err.read_text()
        assert "Traceback" not in out.read_text()
        deadline = time.monotonic() + 60
        while any(os.path.exists(f"/proc/{pid}") for pid in below) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in below if os.path.exists(f"/proc/{pid}")]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(120)
