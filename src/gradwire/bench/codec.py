"""How fast the compressors are, in units of this machine's memory bandwidth.

Each row is one operation of one compressor at one size: first checked bit for bit, then timed in turns with a triad
that moves the fewest bytes the operation could move, on the same threads. Before each round the operation gets its
gradient and its residual back as they were, outside of the measurement; the triad runs between that and the
operation, so the caches hold no more of the input than they otherwise would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradwire import registry
from gradwire.bench.machine import environment
from gradwire.bench.statistics import interleave, stopwatch, summarise
from gradwire.bench.steps import STEPS, Step
from gradwire.bench.triad import Triad
from gradwire.bench.verify import check
from gradwire.bench.workload import Workload
from gradwire.compressors.base import Compressor

__all__ = ["SIZES", "registered", "rows"]

SIZES = tuple(1 << k for k in range(12, 27, 2))
"""2^12 to 2^26, in factors of 4."""

Row = dict[str, Any]


def registered() -> list[Compressor]:
    """Every registered compressor, at its default parameters."""
    return [registry.build("compressors", name) for name in registry.names("compressors")]


def rows(compressors: Sequence[Compressor], sizes: Sequence[int], repeats: int | None = None) -> Iterator[Row]:
    """Check and time every operation of every compressor at every size; one row each, ``len(STEPS)`` for each pair.

    Args:
        compressors: to be measured.
        sizes: numbers of elements.
        repeats: rounds of each row; None: as many as a second allows, and at least 5.

    Raises:
        WrongResultError: an operation and the reference disagree; nothing of it was timed.
    """
    for compressor in compressors:
        for n in sizes:
            for step in STEPS:
                checked = check(step, compressor, n)
                yield _row(step, step.workload(compressor, n), repeats) | {"checked_size": checked} | environment()


def _row(step: Step, work: Workload, repeats: int | None) -> Row:
    nbytes = step.fewest_bytes(work)
    contestants = {"triad": stopwatch(Triad(nbytes)), "op": stopwatch(lambda: step.run(work))}
    limits = {} if repeats is None else {"least": repeats, "most": repeats}
    samples = interleave(contestants, prepare=_restorer(step, work), **limits)
    op, triad = summarise(samples["op"]), summarise(samples["triad"])
    return {
        "method": work.compressor.name, "params": work.compressor.properties()["params"],
        "size": work.n, "op": step.name,
        "seconds": op.median, "seconds_low": op.low, "seconds_high": op.high, "bytes_moved": nbytes,
        "triad_seconds": triad.median, "triad_ratio": triad.median / op.median,
        "wire_bits_per_element": 8 * work.layout.nbytes / work.n, "repeats": op.count,
    }  # fmt: skip


def _restorer(step: Step, work: Workload) -> Callable[[], None] | None:
    """Gives the gradient and the residual their values back; a decoder has nothing to restore."""
    if step.decodes:
        return None
    fresh = Workload(work.compressor, work.n)

    def restore() -> None:
        work.grad.copy_(fresh.grad)
        work.residual.copy_(fresh.residual)

    return restore
