"""Real namespaces: who sees whom, what is counted, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import ConfigError
from gradwire_lab.netlab import Netlab, NetlabError, _watchdog
from gradwire_lab.netlab.lab import remove_leftovers
from gradwire_lab.netlab.status import lab_of, labs
from gradwire_lab.netlab.system import inside
from lab.tests.netlab.conftest import namespaces

SAY = "import os, sys; print(os.environ['RANK'], os.environ['MASTER_ADDR'], os.environ['WORLD_SIZE'])"


def disciplines(namespace: str, device: str, kind: str) -> list[dict[str, Any]]:
    command = ["tc", "-n", namespace, "-j", "qdisc", "show", "dev", device]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [each for each in found if each["kind"] == kind]


def test_every_port_is_shaped_in_both_directions(lab: Netlab) -> None:
    for rank in range(3):
        for namespace, device in ((lab.names.worker(rank), "eth0"), (lab.names.hub, f"port{rank}")):
            (shaper,) = disciplines(namespace, device, "tbf")
            assert shaper["options"]["rate"] == 100_000_000 // 8
    lab.shape("none")
    assert not disciplines(lab.names.worker(0), "eth0", "tbf")
    lab.shape("100mbit")
    assert len(disciplines(lab.names.hub, "port2", "tbf")) == 1


def test_workers_see_each_other_and_nothing_else(lab: Netlab) -> None:
    with inside(lab.names.worker(1)):
        listener = socket.create_server((lab.names.address(1), 4000))
        assert [name for _, name in socket.if_nameindex()] == ["lo", "eth0"]
    with listener:
        with inside(lab.names.worker(2)):
            socket.create_connection((lab.names.address(1), 4000), 5).close()
            with pytest.raises(OSError, match="unreachable"):
                socket.create_connection(("192.0.2.1", 80), 5)
        assert listener.accept()[1][0] == lab.names.address(2)
        with suppress(OSError):
            socket.create_connection((lab.names.address(1), 4000), 0.2).close()
        listener.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_the_interfaces_count_what_is_sent(lab: Netlab) -> None:
    with inside(lab.names.worker(0)):
        listener = socket.create_server((lab.names.address(0), 4001))
    with inside(lab.names.worker(1)):
        client = socket.create_connection((lab.names.address(0), 4001), 5)
    server, _ = listener.accept()
    before = lab.traffic()
    with listener, client, server:
        client.sendall(bytes(300_000))
        left = 300_000
        while left:
            left -= len(server.recv(left))
    after = lab.traffic()
    sent, received = after[1].sent - before[1].sent, after[0].received - before[0].received
    assert 300_000 < sent < 330_000
    assert 300_000 < received < 330_000
    assert after[2].sent - before[2].sent < 1000


def test_a_command_runs_on_every_worker_and_is_told_who_it_is(lab: Netlab) -> None:
    done = lab.run([sys.executable, "-I", "-S", "-c", SAY])
    assert [each.stdout.split() for each in done] == [[str(rank), "10.77.0.1", "3"] for rank in range(3)]
    process = lab.popen(2, ["cat", "/etc/hosts"], stdout=subprocess.PIPE, text=True)
    assert f"10.77.0.3 {os.uname().nodename}" in process.communicate(timeout=10)[0]


def test_torch_finds_the_names_of_its_peers(lab: Netlab) -> None:
    script = "import socket; print(*(socket.getnameinfo((f'::ffff:10.77.0.{n}', 1), 0)[0] for n in (1, 2, 3)))"
    done = lab.run([sys.executable, "-I", "-S", "-c", script])
    assert {each.stdout.strip() for each in done} == {"worker-0 worker-1 worker-2"}


def test_one_that_fails_ends_the_others(lab: Netlab) -> None:
    script = "test $RANK = 1 && { echo the disk is full >&2; exit 3; }; sleep 100"
    start = time.monotonic()
    with pytest.raises(NetlabError, match="worker 1 ended with exit code 3: the disk is full"):
        lab.run(["sh", "-c", script])
    with pytest.raises(NetlabError, match=r"sleep did not end on all workers within 0\.2 s"):
        lab.run(["sleep", "100"], timeout=0.2)
    assert time.monotonic() - start < 50
    pids = subprocess.run(["ip", "netns", "pids", lab.names.worker(0)], capture_output=True, text=True).stdout
    assert not pids.strip()


def test_labs_do_not_meet(lab: Netlab) -> None:
    with Netlab(2, "none") as other:
        assert not set(other.names.all) & set(lab.names.all)
        assert {row["id"] for row in labs()} >= {lab.names.id, other.names.id}
        with inside(lab.names.worker(0)):
            listener = socket.create_server((lab.names.address(0), 4002))
        with listener, inside(other.names.worker(1)), pytest.raises(ConnectionRefusedError):
            socket.create_connection((other.names.address(0), 4002), 5)
    assert not namespaces() & set(other.names.all)
    row = lab_of(lab.names.id)
    assert (row["workers"], row["link"], row["owner"], row["dead"]) == (3, "100mbit", os.getpid(), False)
    assert row["congestion"] == Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def test_leaving_ends_what_runs_inside(possible: None) -> None:
    with Netlab(2, "none") as lab:
        process = lab.popen(0, ["sleep", "100"])
        folder = Path("/etc/netns", lab.names.worker(0))
        assert folder.is_dir()
    assert process.wait(timeout=100) == -signal.SIGKILL
    assert not namespaces() & set(lab.names.all)
    assert not folder.exists()
    assert lab.names.id not in _watchdog.records()
    lab.close()


def test_leaving_ends_what_is_not_inside_yet(possible: None, tmp_path: Path) -> None:
    """The command that enters the namespace takes its time."""
    slow = tmp_path / "ip"
    slow.write_text(f'#!/bin/sh\nsleep 3\nexec {shutil.which("ip")} "$@"\n')
    slow.chmod(0o755)
    with Netlab(2, "none") as lab:
        process = lab.popen(0, ["sleep", "100"], env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"})
    assert process.wait(timeout=100) == -signal.SIGKILL


OWNER = """
import sys, time
from gradwire_lab.netlab import Netlab
lab = Netlab(2, "none")
process = lab.popen(1, ["sleep", "100"])
print(lab.names.id, process.pid, lab._watchdog.pid, flush=True)
time.sleep(100)
"""


def start_owner() -> tuple[subprocess.Popen[str], str, int, int]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    lab, inner, watchdog = owner.stdout.readline().split()
    return owner, lab, int(inner), int(watchdog)


def end(owner: subprocess.Popen[str]) -> None:
    """It alone: what it started holds its output open."""
    owner.kill()
    owner.wait(timeout=10)
    assert owner.stdout is not None
    owner.stdout.close()


def wait_until_gone(lab: str) -> None:
    deadline = time.monotonic() + 20
    while any(name.startswith(f"gw-{lab}-") for name in namespaces()) or lab in _watchdog.records():
        assert time.monotonic() < deadline, f"the lab {lab} is still there"
        time.sleep(0.02)


def test_a_killed_owner_leaves_nothing(possible: None) -> None:
    owner, lab, inner, _ = start_owner()
    assert any(name.startswith(f"gw-{lab}-") for name in namespaces())
    end(owner)
    wait_until_gone(lab)
    assert _watchdog.born(inner) is None


def test_what_owner_and_watchdog_left_is_removed_later(possible: None) -> None:
    owner, lab, _, watchdog = start_owner()
    os.kill(watchdog, signal.SIGKILL)
    remove_leftovers()
    assert lab in _watchdog.records()
    end(owner)
    remove_leftovers()
    wait_until_gone(lab)


def test_a_process_is_known_by_its_number_and_its_birth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_watchdog, "RECORDS", tmp_path)
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    me, born = os.getpid(), _watchdog.born(os.getpid())
    owners = {"mine": (me, born), "older": (me, born - 1), "kept": (None, None), "zombie": (ended.pid, 5)}
    for lab, (owner, when) in owners.items():
        _watchdog.record(lab, {"owner": owner, "born": when})
    assert _watchdog.leftovers() == ["older", "zombie"]
    ended.wait()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the next lab: others may be made meanwhile."""
    monkeypatch.setattr("secrets.token_hex", lambda _size: "0ddba1")
    return "0ddba1"


def test_a_lab_that_cannot_be_made_leaves_nothing(possible: None, named: str) -> None:
    with pytest.raises(NetlabError, match=r"congestion must be one of .*, got 'slow'"):
        Netlab(2, "none", congestion="slow")
    assert not any(named in name for name in [*namespaces(), *_watchdog.records()])


def test_a_system_that_forbids_it_is_an_error(possible: None, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lab as in a container whose /etc cannot be written."""
    monkeypatch.setattr(_watchdog, "HOSTS", Path("/proc/nowhere"))
    with pytest.raises(NetlabError, match=r"this system does not let a lab be made: .*/proc/nowhere"):
        Netlab(2, "none")
    assert not any(named in name for name in [*namespaces(), *_watchdog.records()])


def test_wrong_values_are_refused(lab: Netlab) -> None:
    with pytest.raises(ConfigError, match=r"workers must be an integer in \[2, 250\], got 1"):
        Netlab(1)
    with pytest.raises(ConfigError, match=r"rank must be in \[0, 2\], got 3"):
        lab.popen(3, ["true"])
    with pytest.raises(NetlabError, match="gw-nowhere-0 cannot be entered: No such file"), inside("gw-nowhere-0"):
        pass


def test_without_root_or_iproute2_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="netlab must be run as root, to make network namespaces, got user 1000"):
        Netlab()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="netlab needs ip and tc, which iproute2 brings"):
        Netlab()
