"""The time that ``gradwire.wrap_group`` costs and saves, over two processes.

    torchrun --standalone --nproc-per-node 2 benchmarks/process_group.py

For collectives that pass through: microseconds of Python besides the wrapped group's own. For an all-reduce of each
size: milliseconds, and the bytes that a rank sends over those of the ring that it stands in for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import gradwire

REPEATS, SIZES = 2000, (2**16, 2**20, 2**24)


class Silent:
    """In place of a group: what a call costs beside it."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        self.inner = inner

    def allreduce(self, *_: object) -> None:
        return

    def reduce_scatter_single(self, *_: object) -> None:
        return


def microseconds(call: Callable[[], object]) -> float:
    """The median of some hundred calls each."""
    times = []
    for _ in range(REPEATS // 100):
        start = time.perf_counter()
        for _ in range(100):
            call()
        times.append((time.perf_counter() - start) / 100)
    return 1e6 * statistics.median(times)


def milliseconds(call: Callable[[], object]) -> float:
    """The median of seven calls."""
    times = []
    for _ in range(7):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Measure, and let rank 0 say so."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = gradwire.wrap_group(None, "bf16-fp32sum")
    small, part = torch.ones(64), torch.empty(32)
    options, scatter = dist.AllreduceOptions(), dist.ReduceScatterOptions()
    inner, silent = group._inner, Silent(group._inner)
    group._inner = silent  # type: ignore[assignment]
    lines = [
        f"{'all_reduce':16} {microseconds(lambda: group.allreduce([small], options)):6.2f} us beside the wrapped group",
        f"{'reduce_scatter':16} "
        f"{microseconds(lambda: group.reduce_scatter_single(part, small, scatter)):6.2f} us beside the wrapped group",
    ]
    group._inner = inner
    for name, each in (("wrapped", group), ("plain", inner)):
        lines.append(
            f"{name:16} {microseconds(lambda g=each: dist.all_reduce(small, group=g)):6.1f} us an all_reduce of 64"
        )
    for numel in SIZES:
        tensor = torch.randn(numel)
        plain = milliseconds(lambda t=tensor: dist.all_reduce(t.clone()))
        for code in ("bf16-fp32sum", "fp8-two-phase", "qsgd:bits=4"):
            wrapped = gradwire.wrap_group(None, code)
            took = milliseconds(lambda t=tensor, g=wrapped: dist.all_reduce(t.clone(), group=g))
            ratio = wrapped.metrics()["total_ratio"]
            lines.append(f"{numel:10d} {code:16} {took:9.2f} ms, plain {plain:9.2f} ms, {ratio:5.2f} times fewer bytes")
            wrapped.close()
    if dist.get_rank() == 0:
        print("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
