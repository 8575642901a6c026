"""Speed of the compressors, in units of this machine's memory bandwidth.

Each row is one operation of one compressor at one size: first checked bit for bit, then timed in turns with a triad
that moves the fewest bytes the operation could move, on the same threads. Before each round the operation gets its
gradient and its residual back as they were, outside of the measurement; the triad runs between that and the
operation, so the caches hold no more of the input than they otherwise would.

A size that would take too long or too much memory gives a row too: it has no figures, and ``skipped`` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradwire import catalogue, registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.casts.none import Identity
from gradwire_lab.bench.budget import Budget
from gradwire_lab.bench.busy import TURNS, Addition, slow_down
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.neighbours import Neighbours
from gradwire_lab.bench.statistics import interleave, stopwatch, summarise
from gradwire_lab.bench.steps import STEPS, Step
from gradwire_lab.bench.triad import Triad
from gradwire_lab.bench.verify import Checks
from gradwire_lab.bench.workload import Workload

__all__ = ["BUDGET", "SIZES", "label", "registered", "rows"]

SIZES = tuple(1 << k for k in range(12, 27, 2))
"""2^12 to 2^26, in factors of 4."""

BUDGET = 20.0
"""Seconds that a row may take; what one size took foretells the next."""

Row = dict[str, Any]


def registered() -> list[Compressor]:
    """Every registered compressor, at its default parameters."""
    return [registry.build("compressors", name) for name in registry.usable("compressors")]


def label(row: Row) -> str:
    """The method as it would be written on the command line; parameters at their defaults are left out."""
    defaults = capabilities.properties(registry.build("compressors", row["method"]))["params"]
    changed = ",".join(f"{name}={value}" for name, value in row["params"].items() if value != defaults[name])
    return f"{row['method']}:{changed}" if changed else str(row["method"])


def rows(
    compressors: Sequence[Compressor],
    sizes: Sequence[int],
    repeats: int | None = None,
    seconds: float = BUDGET,
    busy: int = 0,
) -> Iterator[Row]:
    """Check and time every operation of every compressor at every size; one row each, ``len(STEPS)`` for each pair.

    Args:
        compressors: compressors to measure.
        sizes: numbers of elements; increasing, if long ones are to be left out in time.
        repeats: rounds of each row; None: as many as a second allows, and at least 5.
        seconds: a row that would take longer, by what the size before it took, is skipped.
        busy: processes that compute beside it in every second turn, for which a row then says how much slower the
            operation and torch's addition are. They are started here, and end with the iteration.

    Raises:
        WrongResultError: an operation and the reference disagree; nothing of it was timed.
    """
    budget, check = Budget(seconds), Checks()
    # The libraries that torch loads on first use must not count for the first method.
    check(STEPS[0], Identity(), 1)
    with Neighbours(busy) as neighbours:
        for compressor in compressors:
            for n in sizes:
                for step in STEPS:
                    yield _row(step, compressor, n, repeats, budget, check, neighbours) | environment()


def _row(
    step: Step,
    compressor: Compressor,
    n: int,
    repeats: int | None,
    budget: Budget,
    check: Checks,
    neighbours: Neighbours,
) -> Row:
    params = capabilities.properties(compressor)["params"]
    named = {"method": compressor.name, "params": params, "size": n, "op": step.name}
    reason = step.refusal(compressor) or budget.refusal(step, compressor, n)
    if reason is not None:
        return named | {"skipped": reason}
    start = time.perf_counter()
    checked_size = check(step, compressor, n)
    work = step.workload(compressor, n)
    checked = time.perf_counter() - start
    figures = _timed(step, work, repeats)
    budget.learn(step, compressor, n, checked=checked, once=figures["seconds"])
    if neighbours.count > 0:
        figures |= _slowed(step, work, repeats, neighbours)
    return named | figures | {"checked_size": checked_size}


def _slowed(step: Step, work: Workload, repeats: int | None, neighbours: Neighbours) -> Row:
    contestants: dict[str, Callable[[], object]] = {
        "add": Addition(step.fewest_bytes(work)),
        "op": lambda: step.run(work),
    }
    found = slow_down(contestants, neighbours, repeats or TURNS, prepare=None if step.decodes else work.restore)
    return {
        "neighbours": neighbours.count,
        "alone_seconds": found["op"].alone,
        "busy_seconds": found["op"].busy,
        "alone_add_seconds": found["add"].alone,
        "busy_add_seconds": found["add"].busy,
        "slow_down": found["op"].factor,
        "add_slow_down": found["add"].factor,
        "slow_down_ratio": found["op"].factor / found["add"].factor,
    }


def _timed(step: Step, work: Workload, repeats: int | None) -> Row:
    # The warm-up, before the floor is known: how many bytes a payload has may depend on the data.
    step.run(work)
    nbytes = step.fewest_bytes(work)
    triad = Triad(nbytes)
    triad()
    contestants = {"triad": stopwatch(triad), "op": stopwatch(lambda: step.run(work))}
    limits = {} if repeats is None else {"least": repeats, "most": repeats}
    samples = interleave(contestants, warm_up=0, prepare=None if step.decodes else work.restore, **limits)
    op, floor = summarise(samples["op"]), summarise(samples["triad"])
    return {
        "seconds": op.median,
        "seconds_low": op.low,
        "seconds_high": op.high,
        "bytes_moved": nbytes,
        "triad_seconds": floor.median,
        "triad_ratio": floor.median / op.median,
        "wire_bits_per_element": 8 * work.sent / work.n,
        "state_bytes_per_element": catalogue.state_bytes(work.compressor, work.shape, work.state),
        "repeats": op.count,
        "samples": samples["op"],
    }
