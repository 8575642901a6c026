"""``gradwire launch`` with real processes: what it starts, how it ends, and that nothing is left."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire import ConfigError, GroupError
from gradwire.kvstore.launch import processes
from gradwire.kvstore.launch.processes import Group, start_server
from gradwire.kvstore.launch.remote import LocalMachine, end_all
from tests.forked import Forked, Forks

SCRIPT = Path(__file__).with_name("workers.py")


def started(what, folder, *options):
    command = ["-m", "gradwire", "launch", *options, "--", sys.executable, str(SCRIPT), what, str(folder)]
    environment = {**os.environ, "GRADWIRE_TEST": "it's $HOME"}
    return Forked(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def appear(*files, seconds=90):
    """The process ids in files, when they are there."""
    deadline = time.monotonic() + seconds
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline, f"{files} did not appear"
        time.sleep(0.05)
    return [int(file.read_text()) for file in files]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def servers_of(pid):
    """The children of a launcher that are servers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"server" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")]


def gone(*pids, seconds=90):
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if alive(pid)]
        time.sleep(0.05)


def finish(process, seconds=90):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def test_workers_meet_at_a_server_that_has_keys_and_the_exit_code_is_zero(tmp_path, gradwire):
    made = gradwire("keygen", str(tmp_path / "keys"), "--workers", "2")
    assert made.exit_code == 0
    names = ("servers", "worker-0", "worker-1")
    assert made.stdout.split() == [str(tmp_path / "keys" / name) for name in names]
    code, out, err = finish(started("add", tmp_path, "-n", "2", "--keys", str(tmp_path / "keys")))
    assert code == 0, err
    ranks = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert ranks == [f"rank {rank} of 2: it's $HOME" for rank in range(2)]
    assert out.count("sum [3.0, 3.0, 3.0]") == 2


def test_the_exit_code_of_a_worker_that_fails_becomes_the_launchers_and_the_others_are_ended(tmp_path):
    process = started("fail", tmp_path, "-n", "2")
    pids = appear(tmp_path / "pid-0", tmp_path / "child-0")
    code, _, err = finish(process)
    assert code == 7
    assert "worker 1 ended with exit code 7" in err
    gone(*pids)


ENDS = {
    "asked": ("stay", signal.SIGTERM, 143),
    "asked-stubborn": ("stubborn", signal.SIGINT, 130),
    "killed": ("stay", signal.SIGKILL, -9),
    "killed-stubborn": ("stubborn", signal.SIGKILL, -9),
}
"""The workers' work, the signal that the launcher is sent, and its exit code."""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """A launcher for each of ENDS that was sent its signal, and all that it had started: they end at the same time."""
    begun = {}
    for name, (what, _, _) in ENDS.items():
        folder = tmp_path_factory.mktemp(name)
        begun[name] = started(what, folder, "-n", "2"), folder
    found = {}
    for name, (process, folder) in begun.items():
        pids = appear(*(folder / f"{name}-{rank}" for name in ("pid", "child") for rank in range(2)))
        servers = servers_of(process.pid)
        assert len(servers) == 1
        process.send_signal(ENDS[name][1])
        found[name] = process, [*pids, *servers]
    return found


@pytest.mark.parametrize("name", ENDS)
def test_a_launcher_that_is_asked_to_end_or_killed_leaves_nothing_behind(name, launched):
    process, pids = launched[name]
    assert finish(process)[0] == ENDS[name][2]
    gone(*pids)


def test_what_ended_in_peace_may_have_left_something_running(tmp_path):
    process = started("leave", tmp_path, "-n", "1")
    (child,) = appear(tmp_path / "child-0")
    try:
        assert process.wait(90) == 0
        # What the launcher leaves behind to end others would act about now.
        time.sleep(1.0)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.mark.parametrize("who", ["worker 1", "server 0"])
def test_whoever_is_killed_ends_the_run(who, tmp_path):
    with Group([sys.executable, str(SCRIPT), "stay", str(tmp_path)], workers=2, servers=1) as group:
        pids = appear(*(tmp_path / f"{name}-{rank}" for name in ("pid", "child") for rank in range(2)))
        (group.workers[1] if who == "worker 1" else group.servers[0]).kill()
        assert group.wait() == 137
        assert group.failure() == (who, 137)
    gone(*pids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["launch", "--wokers", "2", "--", "python"], "--wokers"),
        (["launch", "-n", "0", "--", "python"], "'-n' / '--workers'"),
        (["launch", "-n", "2"], "SCRIPT"),
        (["launch", "--env", "PATH", "--", "python"], "--env has no effect without --host-file"),
        (["launch", "--folder", "/tmp", "--", "python"], "--folder has no effect without --host-file"),
        (["launch", "--python", "python3", "--", "python"], "--python has no effect without --host-file"),
        (["launch", "--ssh", "ssh -v", "--", "python"], "--ssh has no effect without --host-file"),
        (["launch", "--host-file", "/nowhere", "--", "python"], "--host-file /nowhere"),
        (["launch", "--server-option", "--stale=4", "--", "python"], "exit code 2"),
        (["launch", "--", "no-such-program"], "no-such-program"),
        (["server"], "--workers"),
        (["server", "--workers", "1", "--on-dead-worker", "maybe"], "--on-dead-worker"),
        (["server", "--workers", "1", "--bind", "tcp://127.0.0.1:http"], "tcp://127.0.0.1:http"),
        (["server", "--workers", "1", "--keys", "/nowhere"], "keys must be"),
        (["keygen", "/nowhere/keys"], "--workers"),
    ],
)
def test_a_bad_option_is_named(arguments, message, gradwire):
    done = gradwire(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_for_metrics_that_is_taken_is_named_before_the_server_listens(gradwire):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = gradwire("server", "--workers", "1", "--metrics-port", str(port))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"--metrics-port must be a free port, or 0 for any free one, got {port}: " in done.stderr


class Pretended(LocalMachine):
    """This machine, where a Python program stands in for a server.

    Args:
        program: text of the program.
    """

    def __init__(self, program):
        self.program, self.process = program, None

    def serve(self, command, label):
        self.process, announced = super().serve([sys.executable, "-c", f"import os, time; {self.program}"], label)
        return self.process, announced


def test_what_is_printed_before_a_server_listens_is_passed_on(capfd):
    program = "print('hello'); print('listening on tcp://127.0.0.1:1', flush=True); time.sleep(600)"
    process, endpoint = start_server([], Pretended(program), 3)
    end_all([process])
    assert endpoint == "tcp://127.0.0.1:1"
    assert capfd.readouterr().out == "[server 3] hello\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('no port'); exit(3)", "server 0 ended with exit code 3 before it .*; its last line was 'no port'"),
        ("exit(3)", "server 0 ended with exit code 3 before it listened$"),
        # Then end_all ends it, by a signal that is none of the server's reasons.
        ("os.close(1); time.sleep(600)", "server 0 closed its output before it listened$"),
        ("time.sleep(600)", "server 0 did not say within 1.5 s \\(GRADWIRE_START_TIMEOUT\\) where it listens"),
    ],
)
def test_a_server_that_does_not_listen_is_ended_with_the_reason(program, message, monkeypatch):
    monkeypatch.setenv("GRADWIRE_START_TIMEOUT", "1.5" if program == "time.sleep(600)" else "90")
    monkeypatch.setattr(processes, "GRACE", 90.0 if "exit" in program else 0.1)
    machine = Pretended(program)
    with pytest.raises(GroupError, match=message):
        start_server([], machine)
    assert machine.process.poll() is not None


def test_a_bad_time_to_start_is_refused_before_anything_is_started(monkeypatch):
    monkeypatch.setenv("GRADWIRE_START_TIMEOUT", "soon")
    machine = Pretended("time.sleep(600)")
    with pytest.raises(ConfigError, match="GRADWIRE_START_TIMEOUT must be seconds > 0, got 'soon'"):
        start_server([], machine)
    assert machine.process is None


def test_a_server_that_has_a_deadline_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setenv("GRADWIRE_START_TIMEOUT", "3600")
    machine = Pretended("time.sleep(600)")
    with pytest.raises(GroupError, match="server 1 did not say within 3600 s"):
        start_server([], machine, 1, time.monotonic())
    assert machine.process.poll() is not None


def test_a_server_is_ended_if_its_start_is_interrupted():
    class Interrupted(Pretended):
        def serve(self, command, label):
            return super().serve(command, label)[0], self

        def get(self, timeout):
            raise KeyboardInterrupt

    machine = Interrupted("time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        start_server([], machine)
    assert machine.process.poll() is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_ends_in_peace_when_it_is_asked_to(number, code):
    process = Forked(["-m", "gradwire", "server", "--workers", "1"], stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"listening on tcp://127.0.0.1:")
    process.send_signal(number)
    assert finish(process)[0] == code


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", ["kvstore_digits.py", "kvstore_fit.py"])
def test_the_examples_learn(script, capfd):
    example = str(Path(__file__).parents[2] / "examples" / script)
    flags = ["--kv-store", "dist_sync", "--gc-type", "2bit", "--num-epochs", "1"]
    with Group([sys.executable, example, *flags], 2, 1, machines=[Forks()] * 2) as group:
        assert [group.workers[rank].wait(500) for rank in range(2)] == [0, 0]
    out, err = capfd.readouterr()
    said = re.findall(r"Validation-accuracy=(0\.\d+)|workers: ([\d.]+) %", out + err)
    scores = [float(share) if share else float(percent) / 100 for share, percent in said]
    assert len(scores) == (1 if script == "kvstore_digits.py" else 2)
    # Ten digits: who has learned nothing has one of ten right.
    assert max(scores) > 0.2


def test_a_launcher_that_ignores_the_end_of_its_terminal_goes_on(tmp_path):
    """It was started under nohup."""
    own = [
        sys.executable,
        "-m",
        "gradwire",
        "launch",
        "-n",
        "1",
        "--",
        sys.executable,
        str(SCRIPT),
        "stay",
        str(tmp_path),
    ]
    shell = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    with subprocess.Popen([*shell, *own], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pids = appear(tmp_path / "pid-0")
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.send_signal(signal.SIGTERM)
        assert finish(process)[0] == 143
    gone(*pids)
