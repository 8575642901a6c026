"""The delay of links, by the kernel's netem where there is one, and by the process that holds frames back."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.netlab import Netlab, NetlabError, _delay_line, lab
from gradwire.netlab.delay import has_netem
from gradwire.netlab.system import inside

DELAY = 0.02


@pytest.fixture(params=["netem", "delay line"])
def delayed(possible: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Netlab]:
    """A lab whose links have a delay."""
    if request.param == "delay line":
        monkeypatch.setattr(lab, "has_netem", lambda _: False)
    with Netlab(3, "50mbit", "20ms") as made:
        if request.param == "netem" and not has_netem(made.names.hub):
            pytest.skip("this kernel has no netem")
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


def test_a_delay_comes_and_goes_while_a_connection_lives(delayed: Netlab) -> None:
    client, server = connected(delayed, 0, 2)
    with client, server:
        for rate, delay in (("100mbit", "0ms"), ("100mbit", "30ms"), ("100mbit", "30ms"), ("none", "0ms")):
            delayed.shape(rate, delay)
            client.sendall(b"still there")
            assert server.recv(64) == b"still there"
    assert round_trip(delayed) < DELAY
    assert not lines_of(delayed)


def test_the_process_ends_with_the_lab(possible: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "has_netem", lambda _: False)
    with Netlab(2, "50mbit", "20ms") as made:
        (process,) = lines_of(made)
        assert Path(f"/proc/{process}").exists()
    assert not Path(f"/proc/{process}").exists()


def test_without_netem_and_devices_it_says_so(possible: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "line.py"
    broken.write_text("open('/dev/net/nothing')\n", encoding="utf-8")
    monkeypatch.setattr(lab, "has_netem", lambda _: False)
    monkeypatch.setattr(_delay_line, "__file__", str(broken))
    with pytest.raises(NetlabError, match=r"netem \(sch_netem\) or its TAP devices.*No such file.*/dev/net/nothing"):
        Netlab(2, "50mbit", "20ms")
