import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gradwire.compressors.ternary.twobit import TwoBit
from gradwire.kernels.native import kernels
from gradwire_lab.bench import codec
from gradwire_lab.bench.busy import Addition, SlowDown, slow_down
from gradwire_lab.bench.neighbours import Neighbours


def seconds_of(process):
    """The processor time of a process so far."""
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def computed(process, deadline=20.0, least=0.1):
    """Wait until a process has computed for so long; False where it never does."""
    begin, end = seconds_of(process), time.monotonic() + deadline
    while time.monotonic() < end:
        if seconds_of(process) >= begin + least:
            return True
        time.sleep(0.01)
    return False


needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@needs_proc
def test_neighbours_compute_when_they_are_told_to_and_end_with_the_block():
    with Neighbours(2) as neighbours:
        processes = list(neighbours.processes)
        assert len(processes) == 2
        neighbours.compute()
        assert all(computed(process) for process in processes)
        neighbours.rest()
        time.sleep(0.2)
        assert not computed(processes[0], deadline=0.5, least=0.05)
    assert [process.returncode for process in processes] == [0, 0]


def test_neighbours_end_after_an_error():
    neighbours = Neighbours(1)

    def fail():
        with neighbours:
            neighbours.compute()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert neighbours.processes[0].returncode == 0


@needs_proc
def test_neighbours_end_when_whoever_started_them_is_killed():
    script = """
import sys, time
from gradwire_lab.bench.neighbours import Neighbours
with Neighbours(1) as neighbours:
    neighbours.compute()
    print(neighbours.processes[0].pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_running(pid)


class Recorder:
    """Neighbours that note what they were told."""

    def __init__(self):
        self.orders = []

    def compute(self):
        self.orders.append("compute")

    def rest(self):
        self.orders.append("rest")


def test_turns_are_alone_and_busy_and_end_alone():
    recorder, prepared, ran = Recorder(), [], []

    def run():
        ran.append(recorder.orders[-1])
        time.sleep(0.004 if recorder.orders[-1] == "compute" else 0.001)

    found = slow_down({"op": run}, recorder, turns=3, seconds=0.01, prepare=lambda: prepared.append(1))
    assert recorder.orders == ["rest", "compute"] * 3 + ["rest"]
    assert len(prepared) == len(ran)
    assert set(ran) == {"rest", "compute"}
    assert 0.001 <= found["op"].alone < found["op"].busy
    assert found["op"].factor > 1


def test_an_addition_moves_as_many_bytes():
    addition = Addition(12 * 1000)
    addition()
    assert sum(4 * tensor.numel() for tensor in (addition.a, addition.b, addition.c)) == 12_000
    assert addition.a.unique().tolist() == [3.0]


@pytest.mark.skipif(kernels is None, reason="the C++ extension is not built")
def test_rows_say_how_much_slower():
    rows = list(codec.rows([TwoBit()], [4096], repeats=1, busy=1))
    assert len(rows) > 3
    for row in rows:
        assert row["neighbours"] == 1
        op, add = (SlowDown(row[f"alone_{name}"], row[f"busy_{name}"]) for name in ("seconds", "add_seconds"))
        assert row["slow_down"] == op.factor > 0
        assert row["slow_down_ratio"] == op.factor / add.factor
    assert "neighbours" not in next(codec.rows([TwoBit()], [4096], repeats=1))
    json.dumps(rows)
