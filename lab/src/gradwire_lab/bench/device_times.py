"""Cost of the exchange of one tensor on a device: launches, bytes and time, beside a copy of the same bytes.

One rank, so no collective moves anything: what is left is what an accelerator does for a method in each step, to
encode, to know whether the step counts, and to decode its own payload. Beside it, in turns: a copy that reads and
writes as many bytes as the operations of the step, in one go, and torch's own bf16 hook.

Invariants:
    * A step that is measured comes after ``WARM_UP`` others.
    * Times on a GPU are between two events on its stream, medians of steps that took turns; launches are those that
      torch's profiler saw in one step.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gradwire.compressors.base import Compressor
from gradwire.engine.exchange import Exchange
from gradwire.errors import GradwireError
from gradwire_lab.bench.hooks import HookRunner
from gradwire_lab.bench.operations import OperationCount
from gradwire_lab.bench.pretended import PretendedGroup
from gradwire_lab.bench.statistics import interleave, summarise

__all__ = ["HOOK", "SIZES", "Copy", "launches", "time_rows"]

HOOK = "torch_bf16"
"""The label of torch's hook."""

SIZES = tuple(1 << k for k in range(20, 29, 2))
"""2^20 to 2^28, in factors of 4."""

WARM_UP = 3
"""Steps that are not measured: buffers are made in the first, kernels are compiled."""

LEAST, MOST = 5, 50
"""Steps that are timed."""

MOST_COPIED = 1 << 30
"""Bytes of a copy's source; a larger one is made of several."""

BYTES_NEEDED = 64
"""Bytes an element that a row may need at most; where less is free it is left out."""

Row = dict[str, Any]


class Copy:
    """A copy as the yardstick: one call reads and writes ``nbytes`` together, half of them each.

    Args:
        nbytes: > 0.
        device: device on which the copy runs.

    Example:
        >>> copy = Copy(8000, "cpu")
        >>> copy.source.numel(), copy.times
        (4000, 1)
        >>> copy()
    """

    def __init__(self, nbytes: int, device: str) -> None:
        half = max(1, nbytes // 2)
        self.times = -(-half // MOST_COPIED)
        self.source = torch.zeros(half // self.times, dtype=torch.uint8, device=device)
        self.target = torch.empty_like(self.source)

    def __call__(self) -> None:
        for _ in range(self.times):
            self.target.copy_(self.source)


def time_rows(
    device: str,
    compressors: Sequence[Compressor],
    sizes: Sequence[int] = SIZES,
    *,
    hook: bool = True,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> Iterator[Row]:
    """Yield a row for torch's bf16 hook and for each method at each size, from small to large; a failure is a row with
    an ``error``.

    Args:
        device: "cuda"; on "cpu" there are no launches, and on "meta" only bytes and operations mean anything.
        compressors: compressors to measure.
        sizes: numbers of elements, increasing.
        hook: true: torch's hook is measured, too.
        seconds_left: function that gives the seconds left for making rows; a row that would take longer, by what the
            size before took, is left out and says so in ``left_out``.
    """
    rivals: list[tuple[str, Compressor | None]] = [(HOOK, None)] if hook else []
    rivals += [(each.name, each) for each in compressors]
    took: dict[str, tuple[int, float]] = {}
    for n in sizes:
        for label, compressor in rivals:
            row: Row = {"method": label, "size": n}
            size, before = took.get(label, (n, 0.0))
            foretold, left = before * n / size, seconds_left()
            if reason := _refused(device, n, foretold, left):
                yield row | {"left_out": reason}
                continue
            start = time.perf_counter()
            try:
                row |= _measured(device, compressor, n)
            except (GradwireError, RuntimeError, NotImplementedError) as error:
                row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            took[label] = n, time.perf_counter() - start
            if device == "cuda":
                torch.cuda.empty_cache()
            yield row


def _refused(device: str, n: int, foretold: float, left: float) -> str:
    if foretold > left or left <= 0:
        return f"would take about {foretold:.0f} s, and {max(left, 0):.0f} s are left"
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else math.inf
    return f"{BYTES_NEEDED * n:,} bytes may be needed, {free:,} are free" if BYTES_NEEDED * n > free else ""


def _measured(device: str, compressor: Compressor | None, n: int) -> Row:
    generator = torch.Generator().manual_seed(5)
    small = torch.randn(min(n, 1 << 22), generator=generator).mul_(1e-2).to(device)
    first = small.repeat(-(-n // small.numel()))[:n]
    flat, shape = first.clone(), (1 << (n.bit_length() // 2), n >> (n.bit_length() // 2))
    params = [("weight", shape if math.prod(shape) == n else (n,))]
    if compressor is None:
        hook = HookRunner({"name": "bf16"}, PretendedGroup(1))
        step: Callable[[], object] = lambda: hook.step([(flat, params)])  # noqa: E731
    else:
        exchange = Exchange(compressor, device=device)

        def step() -> None:
            exchange.begin_step()
            exchange.run(flat, params)

    for _ in range(WARM_UP):
        flat.copy_(first)
        step()
    flat.copy_(first)
    with OperationCount(device) as count:
        step()
    row = {
        "operations": count.operations,
        "synchronisations": count.synchronisations,
        "bytes_moved": count.nbytes,
        "bytes_per_element": count.nbytes / n,
    }
    if device == "cuda":
        flat.copy_(first)
        row |= _profiled(step)
    if device == "meta":
        return row
    contestants: dict[str, Callable[[], object]] = {"op": step, "copy": Copy(count.nbytes, device)}
    clocks = {name: _clock(run, device) for name, run in contestants.items()}
    samples = interleave(clocks, seconds=0.5, least=LEAST, most=MOST, prepare=lambda: flat.copy_(first))
    op, copied = summarise(samples["op"]), summarise(samples["copy"])
    if device == "cuda":
        # This is done last: a step that is interrupted leaves a state from which no other can go on.
        flat.copy_(first)
        declared = compressor is None or not compressor.fixed_size
        row["declared_waits" if declared else "waits"] = _first_synchronisation(step)
    return row | {
        "seconds": op.median,
        "seconds_low": op.low,
        "seconds_high": op.high,
        "rounds": op.count,
        "copy_seconds": copied.median,
        "ratio": op.median / copied.median,
    }


def _clock(run: Callable[[], object], device: str) -> Callable[[], float]:
    """Make a contestant that returns the seconds between its begin and its end on the device's stream."""
    if device != "cuda":

        def wall() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return wall
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def events() -> float:
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return events


def _profiled(step: Callable[[], object]) -> Row:
    """Profile the launches of one step."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    events = profile.events() or ()
    return launches((event.name, event.device_type.name, event.time_range.elapsed_us() / 1e6) for event in events)


def launches(events: Iterable[tuple[str, str, float]]) -> Row:
    """Count the kernels, copies and fills that a device was given, and name the kernels that took longest.

    Args:
        events: name, type of device and seconds of each that the profiler saw.

    Example:
        >>> launches([("aten::add", "CPU", 1e-5), ("add_kernel", "CUDA", 2e-5), ("Memcpy DtoD", "CUDA", 1e-6)])
        {'launches': 2, 'copies': 1, 'fills': 0, 'kernels': {'add_kernel': {'launches': 1, 'seconds': 2e-05}}}
    """
    names: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for name, device, took in events:
        if device == "CUDA":
            names[name[:80]] += 1
            seconds[name[:80]] += took
    copies = sum(count for name, count in names.items() if name.startswith("Memcpy"))
    fills = sum(count for name, count in names.items() if name.startswith("Memset"))
    ordered = sorted(seconds, key=lambda name: -seconds[name])
    slow = [name for name in ordered if not name.startswith(("Memcpy", "Memset"))][:10]
    kernels = {name: {"launches": names[name], "seconds": seconds[name]} for name in slow}
    return {"launches": names.total(), "copies": copies, "fills": fills, "kernels": kernels}


def _first_synchronisation(step: Callable[[], object]) -> str | None:
    """Torch's message about the first call that waits for the device; None if no call does."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None
