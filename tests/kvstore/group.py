"""Real servers and workers as processes; what the workers return."""

import pickle
import sys
import time
from pathlib import Path

import torch

from gradwire.kvstore.launch.processes import Group
from tests.forked import Forks

ROOT = Path(__file__).parents[2]


def run_workers(job, workers, servers=1, *arguments, folder, options=(), keys=None, timeout=60):
    """Run ``job(rank, *arguments)`` in each worker process.

    Args:
        job: a function of a test module.
        folder: folder of arguments and results.

    Returns:
        The results of the workers, in the order of ranks.
    """
    with start_workers(job, workers, servers, *arguments, folder=folder, options=options, keys=keys) as group:
        return finished(group, folder, timeout)


def start_workers(job, workers, servers=1, *arguments, folder, options=(), keys=None):
    return Group(command_of(job, *arguments, folder=folder), workers, servers, options, keys, [Forks()] * workers)


def command_of(job, *arguments, folder):
    """The command of a worker that does a job, whose arguments are written to the folder."""
    (folder / "arguments").write_bytes(pickle.dumps(arguments))
    return [sys.executable, "-m", "tests.kvstore.group", f"{job.__module__}:{job.__name__}", str(folder)]


def finished(group, folder, timeout=60):
    """The results of the workers, once all of them have ended well."""
    for process in group.workers.values():
        assert process.wait(timeout) == 0
    return [result(folder, rank) for rank in sorted(group.workers)]


def wait_for(folder, rank, step, seconds=90):
    """Until a worker process has made so many steps."""
    deadline = time.monotonic() + seconds
    file = folder / f"step-{rank}"
    while not file.exists() or int(file.read_text() or 0) < step:
        assert time.monotonic() < deadline, f"worker {rank} did not come to step {step}"
        time.sleep(0.02)


def kill(process):
    """Kill a process as a crash would: nothing of it runs any more."""
    process.kill()
    process.wait()


def result(folder, rank):
    return torch.load(folder / f"result-{rank}", weights_only=True)


def main():
    """In a worker: do the job, write what it returns."""
    import importlib
    import os

    name, folder = sys.argv[1:]
    module, function = name.split(":")
    torch.set_num_threads(1)
    rank = int(os.environ["GRADWIRE_RANK"])
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    value = getattr(importlib.import_module(module), function)(rank, *arguments)
    torch.save(value, Path(folder) / f"result-{rank}")


if __name__ == "__main__":
    main()
