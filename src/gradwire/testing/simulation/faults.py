"""Faults: what happens to processes, connections and disks in a simulated run, and when."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from gradwire.testing.simulation.workload import SimulatedTraining

__all__ = ["CLASSES", "Fault", "draw"]

NEVER = 999.0
"""Seconds after which nothing comes again."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Args:
        kind: "cut", "stall", "stop", "jump", "full", "end", or, with a kill and a restart, "kill",
            "torn", "flip" or "power".
        target: "server-0", "worker-1", or, of a connection, "worker-1~server-0".
        at: seconds after the start, or after ``since``.
        seconds: duration, or the time until the restart; of "jump" the seconds that the clock gains.
        since: "finishing" or "finished": when the first worker is about to finish, or has; "": the start.
        count: operations that a killed process still does, or messages that a cut connection still takes; of "stop",
            1 stops it at its next look at its clock.
    """

    kind: str
    target: str
    at: float
    seconds: float
    since: str = ""
    count: int = 0

    def __str__(self) -> str:
        return f"{self.kind}={self.target}@{self.since}{self.at:g}+{self.seconds:g}" + (
            f"#{self.count}" if self.count else ""
        )

    @classmethod
    def parse(cls, word: str) -> Fault | None:
        """Read a fault as ``str`` writes it; None: it is something else."""
        found = re.fullmatch(r"(\w+)=([\w~-]+)@([a-z]*)([\d.e-]+)\+([\d.e-]+)(?:#(\d+))?", word)
        if found is None:
            return None
        kind, target, since, at, seconds, count = found.groups()
        return cls(kind, target, float(at), float(seconds), since, int(count or 0))


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
}
"""Classes of faults; several names with a plus between them are drawn together."""


def draw(source: random.Random, work: SimulatedTraining, name: str) -> list[Fault]:
    """Draw the faults of a class, or of several: "cut+kill-server"."""
    return [fault for each in name.split("+") for fault in CLASSES[each](source, work)]
