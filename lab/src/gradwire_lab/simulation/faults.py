"""Faults of the store: what happens to its processes, connections and disks in a simulated run, and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from gradwire_lab.simulation.case import NEVER, Fault
from gradwire_lab.simulation.workload import SimulatedTraining

__all__ = ["CLASSES", "NEEDS", "any_time", "short"]


def short(source: random.Random) -> float:
    """Draw a time that nobody counts as death."""
    return round(source.uniform(0.3, 5.0), 2)


def any_time(source: random.Random) -> float:
    """Draw a short time, or one that is longer than a worker may be silent, but shorter than a server may be away."""
    return short(source) if source.random() < 0.5 else round(source.uniform(9.0, 25.0), 2)


def moment(source: random.Random, work: SimulatedTraining) -> float:
    """Draw a time in which workers train."""
    return round(source.uniform(0.0, 0.3 + 0.6 * work.steps * work.pace + work.late), 3)


def server(source: random.Random, work: SimulatedTraining) -> str:
    """Draw a server."""
    return f"server-{source.randrange(work.servers)}"


def worker(source: random.Random, work: SimulatedTraining) -> str:
    """Draw a worker."""
    return f"worker-{source.randrange(work.workers)}"


def cut(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Cut a connection."""
    ends, count = f"{worker(source, work)}~{server(source, work)}", source.choice([0, 1, 2, 3, 4, 6])
    return [Fault("cut", ends, moment(source, work), 0.0, count=count)]


def stall(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Hold up a connection, for a time in which both sides may give it up."""
    return [Fault("stall", f"{worker(source, work)}~{server(source, work)}", moment(source, work), any_time(source))]


def stop_worker(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Stop a worker."""
    return [Fault("stop", worker(source, work), moment(source, work), any_time(source), count=source.randrange(2))]


def stop_server(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Stop a server."""
    return [Fault("stop", server(source, work), moment(source, work), any_time(source), count=source.randrange(2))]


def stop_both(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Stop a worker, and a server between its reading and its look at the clock."""
    at, seconds = moment(source, work), any_time(source)
    first = Fault("stop", worker(source, work), at, seconds)
    return [first, Fault("stop", server(source, work), round(at + source.uniform(-1, 1) % 8, 3), seconds, count=1)]


def kill_server(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a server, and start it again."""
    seconds, count = any_time(source), source.choice([0, 1, 2, 3, 5, 8])
    return [Fault("kill", server(source, work), moment(source, work), seconds, count=count)]


def kill_worker(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a worker, and start it again, as a rule before it counts as dead."""
    seconds = source.choice(
        [short(source), short(source), any_time(source), round(source.uniform(8.5, 14.0), 2), NEVER]
    )
    return [Fault("kill", worker(source, work), moment(source, work), seconds, count=source.choice([0, 1, 2, 5]))]


def torn(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a server in the middle of a write."""
    return [Fault("torn", server(source, work), moment(source, work), short(source))]


def full(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Fill the disk of a server for a while."""
    return [Fault("full", server(source, work), moment(source, work), any_time(source))]


def flip(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a server, and flip a bit of its file before it is started again."""
    return [Fault("flip", server(source, work), moment(source, work), short(source))]


def jump(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Let the clock of a process jump."""
    target = (server if source.random() < 0.5 else worker)(source, work)
    return [Fault("jump", target, moment(source, work), round(source.uniform(1, 100), 1))]


def power(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Cut the power of a server's machine: what was not flushed is lost."""
    return [Fault("power", server(source, work), moment(source, work), short(source))]


def finished(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a server after the first worker has finished."""
    return [Fault("kill", server(source, work), round(source.uniform(0, 2), 3), short(source), "finished")]


def finished_full(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Fill the disk of a server when the first worker is about to finish, and kill it afterwards."""
    target, seconds = server(source, work), any_time(source)
    at = round(seconds + source.uniform(-1, 2), 3)
    return [
        Fault("full", target, 0.0, seconds, "finishing"),
        Fault("kill", target, max(0.1, at), short(source), "finishing"),
    ]


def hang(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Let a process stand still whose connections live."""
    return [
        Fault(
            "hang", (server if source.random() < 0.7 else worker)(source, work), moment(source, work), any_time(source)
        )
    ]


def gone(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Stop a server in one of three ways, for ever or for longer than it is waited for."""
    kind, seconds = (
        source.choice(["stop", "hang", "kill"]),
        source.choice([NEVER, round(source.uniform(30.0, 90.0), 2)]),
    )
    return [Fault(kind, server(source, work), moment(source, work), seconds)]


def lost(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill or stop a server that keeps no snapshot."""
    return source.choice([kill_server, gone])(source, work)


def older(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a server, and start it again with a file that it had before, or with none."""
    return [Fault("older", server(source, work), moment(source, work), short(source))]


def swap(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill two servers, and start each of them again with the file of the other."""
    return [Fault("swap", "server-0", moment(source, work), short(source))]


def comeback(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a worker, and start it again when it counts as dead, while the others train or when they have finished."""
    seconds = source.choice([round(source.uniform(8.5, 14.0), 2), round(source.uniform(8.5, 14.0), 2), 60.0])
    return [
        Fault(
            "kill", worker(source, work), round(source.uniform(0.0, 4.0), 3), seconds, count=source.choice([0, 1, 2, 5])
        )
    ]


def finishing(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill a worker while it finishes, on the one server before the other."""
    seconds, count = source.choice([short(source), any_time(source), NEVER]), source.choice([0, 1, 2, 3, 4, 6])
    return [Fault("kill", worker(source, work), source.choice([0.0, 0.0005, 0.005]), seconds, "finishing", count)]


def job(source: random.Random, work: SimulatedTraining) -> list[Fault]:
    """Kill all processes, as a rule when one rank has ended, and start all again."""
    since = source.choice(["", "finished", "finished"])
    at = moment(source, work) if not since else round(source.uniform(0, 2), 3)
    return [Fault("job", "all", at, short(source), since, source.randrange(2))]


def none(*_: object) -> list[Fault]:
    """Let nothing happen."""
    return []


def end(*_: object) -> list[Fault]:
    """Kill all servers when all workers have finished: the values must be in their files."""
    return [Fault("end", "server-0", 0.0, 0.0)]


CLASSES: dict[str, Callable[[random.Random, SimulatedTraining], list[Fault]]] = {
    "none": none,
    "cut": cut,
    "stall": stall,
    "stop-worker": stop_worker,
    "stop-server": stop_server,
    "stop-both": stop_both,
    "kill-server": kill_server,
    "kill-worker": kill_worker,
    "torn": torn,
    "full": full,
    "flip": flip,
    "jump": jump,
    "power": power,
    "finished": finished,
    "finished-full": finished_full,
    "end": end,
    "hang": hang,
    "gone": gone,
    "lost": lost,
    "older": older,
    "swap": swap,
    "comeback": comeback,
    "finishing": finishing,
    "job": job,
}
"""Classes of faults; several names with a plus between them are drawn together."""

# A script that begins again does not know which barriers its first process has passed.
BEGINS_AGAIN: dict[str, Any] = {"barrier": 0}

NEEDS: dict[str, dict[str, Any]] = {
    "stop-worker": BEGINS_AGAIN,
    "kill-worker": BEGINS_AGAIN,
    "lost": {"snapshot": 0},
    "swap": {"servers": 2},
    "comeback": {**BEGINS_AGAIN, "proceed": True, "steps": 8, "pace": 3.0},
    "finishing": {**BEGINS_AGAIN, "servers": 2},
    "job": BEGINS_AGAIN,
}
"""Fields that a workload must have for a class of faults."""
