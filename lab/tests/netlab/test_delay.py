"""The delay of links, by the kernel's netem where there is one, and by the process that holds frames back."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gradwire_lab.netlab import Netlab, NetlabError, _delay_line, lab
from gradwire_lab.netlab.delay import has_netem
from gradwire_lab.netlab.system import counters, inside

DELAY = 0.02


@pytest.fixture
def held_back(possible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let labs delay by a process, as on a kernel without netem; skip where the kernel has no devices for it."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"this system has no TAP devices: {error}")
    monkeypatch.setattr(lab, "has_netem", lambda _: False)


@pytest.fixture(params=["netem", "delay line"])
def delayed(possible: None, request: pytest.FixtureRequest) -> Iterator[Netlab]:
    """A lab whose links have a delay."""
    if request.param == "delay line":
        request.getfixturevalue("held_back")
    else:
        with Netlab(2, "none") as made:
            if not has_netem(made.names.hub):
                pytest.skip("this kernel has no netem")
    with Netlab(3, "50mbit", "20ms") as made:
        yield made


def connected(made: Netlab, source: int, target: int) -> tuple[socket.socket, socket.socket]:
    with inside(made.names.worker(target)):
        listener = socket.create_server((made.names.address(target), 4000))
    with listener, inside(made.names.worker(source)):
        client = socket.create_connection((made.names.address(target), 4000), 5)
        server, _ = listener.accept()
    for end in (client, server):
        end.settimeout(30)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server


def round_trip(made: Netlab) -> float:
    """Seconds of the fastest of some messages to and fro."""
    client, server = connected(made, 0, 2)
    times = []
    with client, server:
        for _ in range(10):
            start = time.perf_counter()
            client.sendall(b"a")
            server.sendall(server.recv(1))
            client.recv(1)
            times.append(time.perf_counter() - start)
    return min(times)


def lines_of(made: Netlab) -> list[str]:
    """The numbers of the processes that hold frames back in a lab."""
    found = subprocess.run(["ip", "netns", "pids", made.names.hub], capture_output=True, text=True, check=True)
    return [pid for pid in found.stdout.split() if b"_delay_line" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def ask_until_it_fails(made: Netlab) -> None:
    """Ask for the traffic for some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        made.traffic()
        time.sleep(0.01)


def test_a_message_takes_the_delay_in_each_direction(delayed: Netlab) -> None:
    assert 2 * DELAY <= round_trip(delayed) < 3 * DELAY


def test_what_is_sent_arrives_whole_at_no_more_than_the_rate(delayed: Netlab) -> None:
    text = random.Random(0).randbytes(2_000_000)
    client, server = connected(delayed, 0, 2)
    before = delayed.traffic()
    start = time.perf_counter()
    sender = threading.Thread(target=client.sendall, args=(text,), daemon=True)
    with client, server:
        sender.start()
        arrived = hashlib.sha256()
        left = len(text)
        while left:
            piece = server.recv(1 << 16)
            arrived.update(piece)
            left -= len(piece)
        seconds = time.perf_counter() - start
        sender.join(5)
    after = delayed.traffic()
    assert arrived.digest() == hashlib.sha256(text).digest()
    assert seconds >= 8 * len(text) / 50e6
    assert after[0].sent - before[0].sent >= len(text)
    assert after[1].received - before[1].received < 10_000, "the bridge does not send to others what is meant for one"
    returned, _ = counters(delayed.names.hub).get("late2", (0, 0))
    assert returned < len(text) / 2, "what goes to a worker does not come back from its port"


def test_a_delay_comes_and_goes_while_a_connection_lives(delayed: Netlab) -> None:
    client, server = connected(delayed, 0, 2)
    with client, server:
        for rate, delay in (("100mbit", "0ms"), ("100mbit", "30ms"), ("100mbit", "30ms"), ("none", "0ms")):
            delayed.shape(rate, delay)
            client.sendall(b"still there")
            assert server.recv(64) == b"still there"
    assert round_trip(delayed) < DELAY
    assert not lines_of(delayed)


def test_the_process_ends_with_the_lab(held_back: None) -> None:
    with Netlab(2, "50mbit", "20ms") as made:
        (process,) = lines_of(made)
        assert Path(f"/proc/{process}").exists()
    assert not Path(f"/proc/{process}").exists()


def test_what_ended_is_named_and_shaping_anew_mends_it(held_back: None) -> None:
    with Netlab(2, "50mbit", "1ms") as made:
        (process,) = lines_of(made)
        waits = [sys.executable, "-c", f"import os, time; os.kill({process}, 9); time.sleep(0.5); raise SystemExit(3)"]
        with pytest.raises(NetlabError, match="the process that delays frames ended: exit code -9"):
            made.run(waits)
        for use in (made.traffic, lambda: made.run(["true"]), lambda: made.popen(0, ["true"])):
            with pytest.raises(NetlabError, match="the process that delays frames ended"):
                use()
        made.shape("50mbit", "1ms")
        made.run(["true"])


def test_a_device_that_was_taken_away_ends_the_process_and_is_told(held_back: None) -> None:
    with Netlab(2, "50mbit", "1ms") as made:
        subprocess.run(["ip", "-n", made.names.hub, "link", "delete", "late0"], check=True)
        with pytest.raises(NetlabError, match=r"ended: exit code 1, OSError: .*File descriptor in bad state"):
            ask_until_it_fails(made)


def test_a_maker_with_many_files_open_has_a_delay(held_back: None) -> None:
    """``select`` would not take descriptors of such numbers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = before[1] if before[1] != resource.RLIM_INFINITY else 4096
    if most < 1200:
        pytest.skip(f"this system lets a process open {most} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(1200, before[0]), before[1]))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        for _ in range(1100):
            files.enter_context(open(os.devnull))
        with Netlab(2, "50mbit", "1ms") as made:
            assert len(lines_of(made)) == 1


def test_a_delay_that_cannot_be_made_leaves_the_workers_connected(
    held_back: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "line.py"
    broken.write_text("raise SystemExit('no room')\n", encoding="utf-8")
    with Netlab(3, "100mbit") as made:
        with monkeypatch.context() as patched:
            patched.setattr(_delay_line, "__file__", str(broken))
            with pytest.raises(NetlabError, match="did not begin within 10 s: exit code 1, no room"):
                made.shape("100mbit", "20ms")
        made.shape("100mbit")
        assert round_trip(made) < DELAY


def test_what_cannot_be_asked_is_not_taken_for_a_kernel_without_netem(possible: None) -> None:
    with pytest.raises(NetlabError, match="gw-nowhere"):
        has_netem("gw-nowhere")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_maker_without_a_standard_stream_keeps_its_lab(held_back: None, closed: str, tmp_path: Path) -> None:
    code = (
        "import time; from gradwire_lab.netlab import Netlab, _watchdog\n"
        "with Netlab(2, '50mbit', '1ms') as made:\n"
        "    time.sleep(0.5)\n"
        f"    open({str(tmp_path / 'seen')!r}, 'w').write(str(len(_watchdog.namespaces(made.names.id))))\n"
    )
    shell = f'exec "$0" -c "$1" {closed}'
    subprocess.run(["sh", "-c", shell, sys.executable, code], timeout=60, check=True)
    assert (tmp_path / "seen").read_text() == "3"


def test_without_netem_and_devices_it_says_so(possible: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "line.py"
    broken.write_text("open('/dev/net/tun/nothing')\n", encoding="utf-8")
    monkeypatch.setattr(lab, "has_netem", lambda _: False)
    monkeypatch.setattr(_delay_line, "__file__", str(broken))
    with pytest.raises(NetlabError, match=r"netem \(sch_netem\) or its TAP devices.*: '/dev/net/tun/nothing'\): leave"):
        Netlab(2, "50mbit", "20ms")
