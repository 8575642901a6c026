"""Attacks on a server of the KVStore, a process of its own that serves an honest worker meanwhile.

Each attack is a function of the server's address in ``tests/attacks/kvstore``, which says what it must meet with. After
each one the server is there, the honest worker has gone on with the bits of a simulation, and memory is bounded.
"""

import re
import resource
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.store import DistStore
from tests.attacks.kvstore import floods, lies, sizes, strangers
from tests.attacks.kvstore.wire import Attacker, init
from tests.forked import Forked
from tests.kvstore.simulate import Simulated

ATTACKS = [attack for module in (strangers, sizes, lies, floods) for attack in module.ATTACKS]
SHAPE, LARGE = (300, 40), 4_000_000
MEGABYTES = 400
"""The most that an attack may add to the server's memory."""


class Honest:
    """A worker that pushes and pulls until it is told to stop, and compares every value."""

    def __init__(self, endpoint):
        self._store = DistStore("dist_async", WorkerPlace((endpoint,), 0, 2), timeout=60)
        self._store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        self._store.set_optimizer("test")
        for key, value in (("w", torch.zeros(SHAPE)), ("spoilt", torch.zeros(4)), ("large", torch.ones(LARGE))):
            self._store.init(key, value)
        self._sender, self._want = Simulated("2bit", 0.5, SHAPE), torch.zeros(SHAPE)
        self.steps, self.error = 0, None
        self._ended = threading.Event()
        self._stepped = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self, steps=3):
        """Wait for so many more steps; raise what went wrong."""
        with self._stepped:
            wanted = self.steps + steps
            done = self._stepped.wait_for(lambda: self.error is not None or self.steps >= wanted, 60)
        if self.error is not None:
            raise self.error
        assert done, "the honest worker is stuck"

    def close(self):
        self._ended.set()
        self._thread.join(60)
        self._store.close()

    def _run(self):
        generator = torch.Generator().manual_seed(1)
        while not self._ended.wait(0.02) and self.error is None:
            try:
                self._step(torch.randn(SHAPE, generator=generator))
            except Exception as error:
                self.error = error
            with self._stepped:
                self.steps += 1
                self._stepped.notify_all()

    def _step(self, grad):
        out = torch.empty(SHAPE)
        self._store.pushpull("w", grad.clone(), out)
        self._want += torch.from_numpy(self._sender.send(grad.numpy()))
        assert torch.equal(out, self._want), f"step {self.steps} has other bits"


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


@pytest.fixture(scope="module")
def server():
    command = ["-m", "gradwire", "server", "--workers", "2", "--on-dead-worker", "continue"]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, begin=few_files)
    yield process, process.stdout.readline().decode().split()[2]
    process.terminate()
    _, said = process.communicate(timeout=20)
    # A traceback is of an exception that no check foresaw.
    assert not said


@pytest.fixture(scope="module")
def honest(server):
    worker = Honest(server[1])
    worker.check()
    yield worker
    worker.close()


def peak_megabytes(process):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]) / 1024


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.__module__.rsplit('.')[-1]}-{attack.__name__}")
def test_the_server_goes_on_with_the_right_bits_in_bounded_memory(server, honest, attack):
    process, endpoint = server
    before = peak_megabytes(process)
    attack(endpoint)
    assert process.poll() is None
    honest.check()
    assert peak_megabytes(process) < before + MEGABYTES
    with Attacker(endpoint, 1) as newcomer:
        assert newcomer.introduced["op"] == "welcome"
        told = newcomer.request("init", **init("spoilt"))
        assert told["op"] == "done", told
