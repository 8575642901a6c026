"""Work of the workers in the tests of two faults at once, and the values that it must come to.

Each worker pushes one-hot vectors, one element for each of its steps, so a value says which pushes count, how often,
and with which setting of the optimizer or in which step.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from gradwire import ConfigError, GradwireError, kvstore
from gradwire.kvstore.protocol.environment import WorkerPlace
from gradwire.kvstore.worker.store import DistStore

RANKS, MOST = 2, 64
"""The sizes of a value: the workers, and steps enough for all tests."""

MOMENTUM = 0.5
"""The momentum of dist_sync, by which the share of a push in the value tells the step in which it counted."""

SMALL = list("abcdefgh")
"""Keys of which each of two servers has some."""

LARGE = 8_000_000
"""Elements of a value whose snapshot is long enough in the writing to be caught at it."""

PATTERN = torch.arange(4096.0)
"""A gradient whose bytes are found in a file."""


def one_hot(rank, step):
    grad = torch.zeros(RANKS, MOST)
    grad[rank, step] = 1
    return grad


def rate(step):
    """The learning rate of a step, a power of two, so that every sum of steps is exact."""
    return 2.0 ** -(step % 3)


def summed(steps, changing=False):
    """The value of dist_async after so many steps of each rank, whatever their order."""
    value = torch.zeros(RANKS, MOST)
    for rank, count in enumerate(steps):
        for step in range(count):
            value[rank, step] = -rate(step) if changing else -1.0
    return value


def stepped(ranks):
    """The value of dist_sync after steps that were made by these ranks, computed without a store."""
    weights = torch.nn.Parameter(torch.zeros(RANKS, MOST))
    optimizer = torch.optim.SGD([weights], lr=1.0, momentum=MOMENTUM)
    for step, those in enumerate(ranks):
        weights.grad = sum(one_hot(rank, step) for rank in those)
        optimizer.step()
    return weights.detach()


def right(kind, steps):
    """The value after so many steps of each rank: in dist_sync a rank that has ended is not waited for."""
    if kind == "dist_async":
        return summed(steps)
    return stepped([[rank for rank, count in enumerate(steps) if step < count] for step in range(max(steps))])


def reached(folder, rank, step):
    """Say how far a worker is, and wait as long as the test has a file that says so."""
    made = Path(folder) / f"step-{rank}"
    made.with_suffix(".new").write_text(str(step))
    made.with_suffix(".new").rename(made)
    while hold(folder, rank, step).exists():
        time.sleep(0.02)


def hold(folder, rank, step):
    """The file that holds a worker at a step while it exists."""
    return Path(folder) / f"hold-{rank}-{step}"


def steps_of(rank, folder, kind, steps, options=None, ends="script"):
    """Push and pull in steps of one key, which is cut over the servers; the error, and the last value.

    Args:
        rank: rank of the worker.
        folder: folder of the files by which the test and the workers know of each other.
        kind: "dist_sync"; "dist_async"; or "changing", which is dist_async with a new learning rate in each step.
        steps: number of steps of each rank.
        options: options of the store.
        ends: "finish": a worker with fewer steps than another says so by a call, and lives on.
    """
    out, kv, changing = torch.zeros(RANKS, MOST), None, kind == "changing"
    (Path(folder) / f"began-{rank}").touch()
    try:
        kv = kvstore.create(
            "dist_async" if changing else kind, **{"timeout": 30, "bound": RANKS * MOST, **(options or {})}
        )
        if not changing:
            kv.set_optimizer("sgd", learning_rate=1.0, momentum=MOMENTUM if kind == "dist_sync" else 0.0)
        kv.init("w", torch.zeros(RANKS, MOST))
        for step in range(kv.version("w"), steps[rank]):
            if changing:
                kv.set_optimizer("sgd", learning_rate=rate(step))
            kv.push("w", one_hot(rank, step))
            kv.pull("w", out)
            reached(folder, rank, step + 1)
        kv.pull("w", out)
        if ends == "finish" and steps[rank] < max(steps):
            kv.finish()
            (Path(folder) / f"finished-{rank}").touch()
            signal.pause()
    except GradwireError as error:
        if kv is not None:
            kv.close()
        return str(error), out
    return "", out


def meets(rank, folder):
    """Come to a barrier twice, the second time when the test lets this worker; the error."""
    kv = kvstore.create("dist_sync", timeout=30)
    try:
        kv.barrier()
        reached(folder, rank, 1)
        kv.barrier()
    except GradwireError as error:
        kv.close()
        return str(error)
    return ""


def crowd(process, endpoint, folder, each, world):
    """Many workers of one server in one process: all of them come to a barrier, the last one when the test lets it.

    Returns:
        The error of each of them, or nothing.
    """
    ranks = range(process * each, process * each + each)
    stores = [DistStore("dist_sync", WorkerPlace((endpoint,), rank, world), timeout=45) for rank in ranks]

    def meet(kv):
        try:
            kv.barrier()
            reached(folder, kv.rank, 1)
            kv.barrier()
        except GradwireError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(each) as threads:
        told = list(threads.map(meet, stores))
    for store in stores:
        store.close()
    return told


def small_steps(rank, folder, steps):
    """Push and pull small keys, each in a call of its own; the error, and the step that each key is at."""
    kv, out = kvstore.create("dist_sync", timeout=30), torch.empty(3)
    try:
        for key in SMALL:
            kv.init(key, torch.zeros(3))
        for step in range(steps):
            for key in SMALL:
                kv.push(key, torch.ones(3))
                kv.pull(key, out)
            reached(folder, rank, step + 1)
    except GradwireError as error:
        kv.close()
        return str(error), []
    return "", [kv.version(key) for key in SMALL]


def large_steps(rank, folder):
    """Push and pull a large value until there is a file that says it is enough; the steps, and their sum."""
    kv, out = kvstore.create("dist_sync", timeout=60), torch.empty(LARGE)
    kv.set_optimizer("test", rescale_grad=1.0)
    kv.init("w", torch.zeros(LARGE))
    step = 0
    while not (Path(folder) / "enough").exists():
        kv.push("w", torch.ones(LARGE))
        kv.pull("w", out)
        step += 1
        reached(folder, rank, step)
    kv.finish()
    return step, out.unique().tolist()


class Heard(logging.Handler):
    """Keeps the warnings of the library that contain a text."""

    def __init__(self, text):
        super().__init__(logging.WARNING)
        self.text, self.warnings, self.first = text, [], threading.Event()
        logging.getLogger("gradwire").addHandler(self)

    def emit(self, record):
        if self.text in record.getMessage():
            self.warnings.append(record.getMessage())
            self.first.set()


def until_the_disk_is_full(rank, folder, steps, cause):
    """Make steps, of which the test fills the disk in the middle, and finish twice: while it is full, and later.

    Returns:
        The warnings that name the cause, and the error of each ``finish``.
    """
    heard, out = Heard(cause), torch.empty(len(PATTERN))
    kv = kvstore.create("dist_sync", timeout=20)
    kv.set_optimizer("test", rescale_grad=1.0)
    kv.init("w", torch.zeros(len(PATTERN)))
    for step in range(steps):
        kv.push("w", PATTERN)
        kv.pull("w", out)
        reached(folder, rank, step + 1)
        if step == steps // 2:
            # Steps after the warning show whether it is repeated.
            heard.first.wait(15)
    told = []
    for attempt in range(2):
        try:
            kv.finish()
            told.append("")
        except GradwireError as error:
            told.append(f"{type(error).__name__}: {error}")
        reached(folder, rank, steps + 1 + attempt)
    return heard.warnings, told


def first_value(rank):
    """Pull the value as a new process; the step that it is at, and the value."""
    kv, out = kvstore.create("dist_sync", timeout=30), torch.empty(len(PATTERN))
    kv.init("w", torch.zeros(len(PATTERN)))
    kv.pull("w", out)
    return kv.version("w"), out


CHILD = {"exit": 8.0, "end": 8.0, "use": 50.0}
"""Seconds that a child may take: less than a worker waits at its end until the servers have noted it, and, of one that
uses the store, less than a request waits."""

USES = {
    "push": lambda kv: kv.push("w", torch.ones(4)),
    "pull": lambda kv: kv.pull("w", torch.empty(4)),
    "init": lambda kv: kv.init("child's", torch.zeros(4)),
    "barrier": lambda kv: kv.barrier(),
    "finish": lambda kv: kv.finish(),
    "set_optimizer": lambda kv: kv.set_optimizer("sgd", learning_rate=1.0),
    "set_gradient_compression": lambda kv: kv.set_gradient_compression({"type": "2bit", "threshold": 0.5}),
}


def uses(kv):
    """The error of each use of a store."""
    told = {}
    for name, use in USES.items():
        try:
            use(kv)
            told[name] = "nothing"
        except ConfigError as error:
            told[name] = str(error)
    return told


def forks(rank, folder):
    """Make a step after each child that worker 1 forks; how each child ended, and the values.

    A child calls ``sys.exit``, comes to the end of its script, or uses the store.
    """
    kv, out = kvstore.create("dist_sync", timeout=60), torch.empty(4)
    kv.init("w", torch.zeros(4))
    ended, seen = [], []
    for way in ("exit", "end", "use"):
        if rank == 1:
            pid = os.fork()
            if pid == 0:
                said = os.open(Path(folder) / f"said-{way}", os.O_CREAT | os.O_WRONLY)
                os.dup2(said, 1)
                os.dup2(said, 2)
                if way == "exit":
                    sys.exit(0)
                if way == "use":
                    (Path(folder) / "uses").write_text(json.dumps(uses(kv)))
                return None
            ended.append((way, code_of(pid, CHILD[way])))
        kv.push("w", torch.full((4,), rank + 1.0))
        kv.pull("w", out)
        seen.append(out.tolist())
    return ended, seen, kv.version("w")


def code_of(pid, seconds):
    """The exit code of a child; one that does not end is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
