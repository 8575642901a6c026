"""Comparison of our distributed store with MXNet's: two workers and one server on loopback, in one run.

Both get the same gradients. Before anything is timed, several steps of fresh ones must leave the same bits in what the
workers of both pull. Then the two take turns; a sample is the slowest worker's time of a step, and ends when the step
is done: for a push, when the sum of all workers' pushes is in the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.mxnet_group import MXNetGroup
from gradwire_lab.bench.peer_venv import PeerError
from gradwire_lab.bench.statistics import Summary, interleave, summarise
from gradwire_lab.bench.storegroup import StoreGroup

__all__ = ["WORKLOADS", "StoreWorkload", "goal", "rows"]

WORKERS, SERVERS = 2, 1
OPS = ("push", "push+pull")
CHECKS = 3
REPEATS = 7
STEP_BYTES = 100e6
"""A sample is as many steps as move about this much, at most ``MOST_STEPS``."""

MOST_STEPS = 10

Row = dict[str, Any]


@dataclass(frozen=True)
class StoreWorkload:
    """A workload of ``keys`` keys with ``size`` elements each, pushed and pulled in one call."""

    keys: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.keys}x{self.size}"

    @property
    def steps(self) -> int:
        return max(1, min(MOST_STEPS, int(STEP_BYTES / (4 * self.keys * self.size))))


WORKLOADS = (StoreWorkload(1, 25_000_000), StoreWorkload(100, 10_000))


class Side(Protocol):
    """One of the two groups of processes."""

    def ask(self, request: str, **arguments: object) -> list[Any]: ...


def rows(
    workloads: Sequence[StoreWorkload] = WORKLOADS,
    types: Sequence[str] = ("none", "2bit"),
    threshold: float = 0.5,
    repeats: int | None = None,
    directory: Path | None = None,
    kind: str = "dist_sync",
) -> Iterator[Row]:
    """Check and time both stores; yield a row for each compression, workload and operation.

    Args:
        workloads: keys and their sizes.
        types: types of compression, as MXNet names them, and "none".
        threshold: threshold of "2bit".
        repeats: rounds of each row; None: 7.
        directory: folder of the peer's virtual environment; None: ``.peers/mxnet``.
        kind: type of both stores.

    Raises:
        PeerError: MXNet cannot be installed or run here, or the results differ.
    """
    for name in types:
        compression = None if name == "none" else {"type": name, "threshold": threshold}
        with MXNetGroup(WORKERS, SERVERS, directory) as theirs, StoreGroup(WORKERS, SERVERS) as ours:
            sides: dict[str, Side] = {"mxnet": theirs, "gradwire": ours}
            for side in sides.values():
                side.ask("open", kind=kind, compression=compression)
            for workload in workloads:
                for side in sides.values():
                    side.ask("add", workload=workload.name, count=workload.keys, size=workload.size)
                _compare(sides, workload, name)
                for op in OPS:
                    yield _row(sides, workload, name, op, repeats or REPEATS)


def goal(compression: str, op: str, keys: int) -> float | None:
    """The factor by which a step has to be faster than MXNet's; None if no goal is set."""
    if op == "push+pull":
        return 2.0
    return 5.0 if compression != "none" and keys == 1 else None


def _compare(sides: dict[str, Side], workload: StoreWorkload, compression: str) -> None:
    """Push and pull new gradients on both sides, and compare the values of all workers bit for bit."""
    for step in range(CHECKS):
        told: dict[str, list[str]] = {}
        for name, side in sides.items():
            side.ask("draw", workload=workload.name, seed=1000 * step)
            side.ask("run", workload=workload.name, op="push+pull", steps=1)
            told[name] = side.ask("digest", workload=workload.name)
        if len({digest for each in told.values() for digest in each}) != 1:
            raise PeerError(
                f"step {step} of {workload.name} elements with compression {compression!r} leaves other values than "
                "MXNet's; nothing was timed"
            )


def _row(sides: dict[str, Side], workload: StoreWorkload, compression: str, op: str, repeats: int) -> Row:
    contestants = {
        name: lambda side=side: max(side.ask("run", workload=workload.name, op=op, steps=workload.steps))
        for name, side in sides.items()
    }
    samples = interleave(contestants, least=repeats, most=repeats)
    ours, theirs = summarise(samples["gradwire"]), summarise(samples["mxnet"])
    return {
        "compression": compression,
        "keys": workload.keys,
        "size": workload.size,
        "op": op,
        **_figures("", ours),
        **_figures("mxnet_", theirs),
        "speedup": theirs.median / ours.median,
        "goal": goal(compression, op, workload.keys),
        "repeats": ours.count,
        "workers": WORKERS,
        "servers": SERVERS,
        "samples": samples["gradwire"],
        "mxnet_samples": samples["mxnet"],
    } | environment()


def _figures(prefix: str, summary: Summary) -> Row:
    return {
        f"{prefix}seconds": summary.median,
        f"{prefix}seconds_low": summary.low,
        f"{prefix}seconds_high": summary.high,
    }
