"""The times of workers, read from outside while real ones compute, wait and send."""

import random
import sys

import pytest

from gradwire_lab.netlab import Netlab
from gradwire_lab.netlab.each_worker import run_all
from gradwire_lab.netlab.worker_times import Interval, WorkerTimes, in_words, merged, shares, since_first_message
from gradwire_lab.netlab.worker_times_page import SHOWN, page_of_times
from lab.tests.report.test_page import dumped, needs_browser

PEERS = """
import os, socket, time

def busy(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

if os.environ["RANK"] == "0":
    with socket.create_server(("", 4000)) as server, server.accept()[0] as peer:
        peer.recv(1)
        busy(1.0)
        peer.sendall(bytes(5_000_000))
        peer.recv(1)
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], 4000))
            break
        except OSError:
            time.sleep(0.05)
    peer.sendall(b"x")
    got = 0
    while got < 5_000_000:
        got += len(peer.recv(1 << 20))
    peer.sendall(b"x")
"""


def interval(end, *, computed=0.0, sent=0, seconds=1.0):
    return Interval(end, seconds, computed, 0.0, sent, 0)


def watched(lab, tmp_path, *launcher):
    script = tmp_path / "peers.py"
    script.write_text(PEERS)
    times = WorkerTimes()
    assert run_all(lab, [*launcher, sys.executable, str(script)], watch=times.watch) == 0
    return since_first_message(times.intervals)


@pytest.fixture(scope="module")
def link(possible):
    with Netlab(2, "50mbit") as lab:
        yield lab


@pytest.mark.parametrize(
    "launcher", [(), (sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")]
)
def test_a_worker_computes_for_a_second_while_the_other_waits_and_then_sends_at_the_rate(link, tmp_path, launcher):
    """A process that only starts the worker's is not taken for it."""
    sender, receiver = watched(link, tmp_path, *launcher)
    # A tick of the kernel at either end of the second, and the copies into the socket.
    assert sum(each.computed for each in sender) == pytest.approx(1.0, abs=0.2)
    waits = [each.waited / each.seconds for each in receiver]
    assert sum(waits) / len(waits) > 0.8
    told = shares(sender)
    assert 5_000_000 <= told["sent"] < 5_600_000
    assert told["peak"] > 45e6
    # Of the middle one, because between a clock and a counter another process may have the processor.
    rates = sorted(8 * each.sent / each.seconds for each in sender if each.sent > 50_000)
    assert 40e6 < rates[len(rates) // 2] < 55e6
    assert sum(each.received for each in receiver) == pytest.approx(told["sent"], rel=0.05)


def test_two_intervals_become_one_and_nothing_is_lost():
    rng = random.Random(0)
    many = [Interval(float(i + 1), 1.0, rng.random(), 0.0, rng.randrange(100), rng.randrange(100)) for i in range(7)]
    few = merged(many)
    assert [each.end for each in few] == [2.0, 4.0, 6.0, 7.0]
    before, after = ([sum(column) for column in list(zip(*each, strict=True))[1:]] for each in (many, few))
    assert after == pytest.approx(before)


def test_a_long_run_keeps_no_more_intervals(possible):
    times = WorkerTimes(every=0.005, most=20)
    with Netlab(2, "none") as lab:
        assert run_all(lab, [sys.executable, "-c", "import time; time.sleep(1)"], watch=times.watch) == 0
    for intervals in times.intervals:
        assert len(intervals) < 20
        assert intervals[-1].end == pytest.approx(sum(each.seconds for each in intervals), abs=1e-6)
        assert intervals[-1].end > 0.8


def test_imports_before_the_first_message_do_not_count_nor_what_follows_the_first_end():
    first = [interval(1.0, computed=1.0), interval(2.0, sent=5), interval(3.0), interval(4.0)]
    second = [interval(1.0), interval(2.0), interval(3.0, sent=7)]
    assert since_first_message([first, second]) == [[first[2]], [second[2]]]
    assert since_first_message([first, [interval(1.0)]]) == [[], []]


def test_a_line_says_what_a_worker_did():
    assert in_words(1, [interval(1.0, computed=0.5, sent=1_000_000)]) == (
        "worker 1 computed 50 % and waited 50 % of 1.0 s, and had no processor in 0 %; it sent 1.0 MB, at most 8 Mbit/s"
    )


@needs_browser
def test_a_browser_draws_a_row_for_each_worker_and_one_for_its_link(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of_times((SHOWN + 1) * [[interval(1.0, computed=0.5, sent=10**6)]], "what they did"))
    page = dumped(path)
    assert page.count("its link, Mbit/s</text>") == SHOWN
    assert f"worker {SHOWN - 1}</text>" in page
    assert f"worker {SHOWN}</text>" not in page
    assert f"what they did: the first {SHOWN} of {SHOWN + 1} workers" in page
    for name in ("computes", "waits", "is ready, and has no processor", "sends", "receives"):
        assert page.count(f">{name}</text>") == 1
