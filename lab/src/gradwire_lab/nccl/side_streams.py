"""Checks of what shows only where streams run beside each other: missing waits, and needless ones.

delayed        a training whose streams are made slow: a wait that is missing shows as another number
sanitizer      the same under torch's own detector of accesses that are not ordered
host waits     a step of a method of fixed size, in which the host must not wait for the device
memory         hundreds of steps, which must need no more of it than the first ones
killed         a rank that dies in the middle of an exchange: the others raise, and leave nothing on the GPU
graph          a step in a CUDA graph, which must be right or be refused with a reason
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import registry
from gradwire.errors import GradwireError
from gradwire.frontends.ddp import compress_ddp
from gradwire.testing.processes import RankFailedError
from gradwire_lab.experiments.process_figures import resident_bytes
from gradwire_lab.experiments.replay import agreed
from gradwire_lab.nccl.batch import compared, find_rows, last_words, verdict
from gradwire_lab.nccl.rows_file import Row, RowsFile
from gradwire_lab.nccl.trainings import (
    CAP,
    SMALL,
    Towers,
    Training,
    batch,
    first_tier,
    loss_of,
    train,
)
from gradwire_lab.nccl.way import RankPlace, Way, run_joined

__all__ = ["DELAYED", "check_killed", "delayed_training", "find_stream_rows", "fixed_size"]

CYCLES = 20_000_000
"""Cycles of the clock that a stream is held up: about 10 ms."""

MANY_STEPS, FEW_STEPS, MEMORY_SECONDS = 500, 40, 30.0
"""Steps of the memory's case, and in a rehearsal; fewer where they would take longer than so many seconds."""

DELAYED = (
    *("ddp twobit, allgather", "ddp powersgd, allreduce", "ddp topk, allgather", "ddp eden, two_phase"),
    *("ddp twobit, no_sync", "ddp qsgd, broadcast", "fsdp blockwise8, bf16, weights in blockwise8"),
    *("fsdp qsgd", "wrap_group bf16-fp32sum", "CompressedStep eden, late", "DiLoCo qsgd", "auto, told its decisions"),
)
"""Trainings that are made with slow streams."""

SYNCHRONISES = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
"""Names under which torch's profiler shows that the host waited for the device."""

_LIMIT = 20.0
"""Seconds in which the others must raise after a rank was killed; the timeout of their group."""

_RAISING = RankPlace(variables={"TORCH_NCCL_BLOCKING_WAIT": "1"})
"""Ranks that raise when a peer is lost; without this torch's watchdog ends them."""


@contextmanager
def delayed_streams(device: str) -> Iterator[None]:
    """Hold up every side stream when it is entered: whoever does not wait for what it does reads too early."""
    if device != "cuda":
        yield
        return
    context: Any = torch.cuda.StreamContext
    before = context.__enter__

    def entered(self: Any) -> Any:
        result = before(self)
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        return result

    context.__enter__ = entered
    try:
        yield
    finally:
        context.__enter__ = before


def delayed_training(rank: int, device: str, case: str, trainings: dict[str, Training], folder: str) -> Row:
    """Make a training with slow streams, and compare it with the one over Gloo: a job for ``find_rows``."""
    hooks = _late_gradients(device)
    try:
        with delayed_streams(device):
            return compared(rank, device, case, trainings, folder)
    finally:
        for handle in hooks:
            handle.remove()


def _late_gradients(device: str) -> list[Any]:
    """Hold up the main stream in front of each backward pass, so that gradients are late as well."""
    if device != "cuda":
        return []

    def late(module: nn.Module, *_: Any) -> None:
        if isinstance(module, nn.ReLU):
            torch.cuda._sleep(CYCLES // 10)  # type: ignore[no-untyped-call]

    return [torch.nn.modules.module.register_module_forward_hook(late)]


def fixed_size() -> list[str]:
    """The methods of the first tier whose payloads have a fixed size: in their steps the host waits for nothing."""
    return [name for name in first_tier() if registry.build("compressors", name).fixed_size]


def sanitized(rank: int, device: str, _case: str) -> Row:
    """Make a training under torch's detector of accesses that are not ordered: a job for ``find_rows``.

    It cannot be ended, so it needs processes of its own.
    """
    if device != "cuda":
        return {"left_out": "there are no streams on a CPU"}
    from torch.cuda._sanitizer import enable_cuda_sanitizer

    enable_cuda_sanitizer()  # type: ignore[no-untyped-call]
    return verdict(_SANITIZED, train(rank, device, _SANITIZED), None)


_SANITIZED = Training("sanitizer", "ddp", "twobit", {"strategy": "allgather"})


def one_case(rank: int, device: str, case: str, *, small: bool) -> Row:
    """Find the row of a case that needs no comparison with Gloo: a job for ``find_rows``.

    Args:
        rank: rank of this process.
        device: device of the tensors.
        case: "host waits, METHOD", "memory" or "graph".
        small: true in a rehearsal.
    """
    if case.startswith("host waits, "):
        return _host_waits(rank, device, case.removeprefix("host waits, "))
    if case == "memory":
        return _memory(rank, device, FEW_STEPS if small else MANY_STEPS)
    return _graph(rank, device)


class _StreamRun:
    """A DDP model with a method, and its steps."""

    def __init__(self, rank: int, device: str, method: str | None, cap: float | None = CAP) -> None:
        self.rank, self.device = rank, device
        self.module = Towers(exact=True).to(device)
        self.model = DistributedDataParallel(self.module, bucket_cap_mb=cap)
        options = SMALL.get(method or "", {})
        self.state = None if method is None else compress_ddp(self.model, method, **options)
        self.batches = [batch(step, rank, device, exact=True) for step in range(4)]

    def step(self, number: int) -> None:
        x, y = self.batches[number % len(self.batches)]
        self.model.zero_grad(set_to_none=False)
        loss_of(self.model(x), y, exact=True).backward()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self.state is not None:
            self.state.close()


def _host_waits(rank: int, device: str, method: str) -> Row:
    """Count how often the host waits for the device in a step, beyond a step of DDP alone."""
    counts = []
    for name in (None, method):
        run = _StreamRun(rank, device, name)
        for number in range(4):
            run.step(number)
        counts.append(_synchronisations(lambda run=run: run.step(4), device))  # type: ignore[misc]
        run.close()
    plain, ours = counts
    more = {name: ours[name] - plain.get(name, 0) for name in ours if ours[name] > plain.get(name, 0)}
    found: Row = {"counted": ours, "plain": plain}
    # On a CPU a look at a number waits for nothing.
    return found | {"waits": f"the host waits for the device: {more}" if more and device == "cuda" else None}


def _synchronisations(step: Callable[[], None], device: str) -> dict[str, int]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        step()
    names = [event.name for event in profile.events() or ()]
    return {name: names.count(name) for name in SYNCHRONISES if name in names}


def _memory(rank: int, device: str, steps: int) -> Row:
    """Make many steps of one bucket, and compare what is allocated after a tenth of them and at the end."""
    run = _StreamRun(rank, device, "twobit", cap=None)
    for number in range(2):
        run.step(number)
    begun = time.perf_counter()
    run.step(2)
    steps = agreed(time.perf_counter() - begun, steps, MEMORY_SECONDS, 20, device)
    early = 0
    for number in range(steps):
        run.step(number)
        if number == steps // 10:
            early = _allocated(device)
    late = _allocated(device)
    run.close()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, late - early)
    grown = max(told)
    # A GPU's allocator counts exactly; of a process's memory some megabytes come and go.
    allowed = 0 if device == "cuda" else 16 << 20
    said = f"{grown} bytes more are allocated after {steps} steps than after {steps // 10}" if grown > allowed else None
    return {"steps": steps, "allocated": late, "grown": grown, "difference": said}


def _allocated(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return resident_bytes() or 0


def _graph(rank: int, device: str) -> Row:
    """Capture a step in a CUDA graph: it must be refused with a reason of ours, or give the numbers of the step."""
    if device != "cuda":
        return {"left_out": "CUDA graphs need a GPU"}
    run = _StreamRun(rank, device, "qsgd")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # DDP itself asks for eleven steps before a capture.
        for number in range(11):
            run.step(number)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            run.step(0)
    except (GradwireError, RuntimeError) as error:
        said = " ".join(str(error).split())[:300]
        if "CUDA graph" in said:
            return {"refused": said}
        return {"error": f"not refused by gradwire, but ended with: {said}"}
    return {"error": "a step was captured, but what runs on the host in each step does not run when it is replayed"}


def check_killed(file: RowsFile, way: Way, world: int, deadline: float) -> bool:
    """Kill a rank in the middle of an exchange, and see how the others end; return whether there was time for it.

    They raise within the timeout of their group.
    """
    part, case = "streams", "a rank is killed"
    if file.has(part, case, world, way.name):
        return True
    if deadline - time.monotonic() < _LIMIT:
        return False
    row: Row = {"part": part, "case": case, "ranks": world, "way": way.name}
    before = _free(way)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        try:
            limits = {"timeout": 3 * _LIMIT, "patience": _LIMIT}
            run_joined(way, world, _killed, way.device, folder, **limits, place=_RAISING)
            row["error"] = "all ranks ended well, although one was killed"
        except RankFailedError as error:
            texts = {rank: Path(folder, str(rank)) for rank in range(world - 1)}
            row["raised"] = {rank: file.read_text() if file.exists() else "" for rank, file in texts.items()}
            silent = [rank for rank, said in row["raised"].items() if not said]
            row["seconds"] = time.monotonic() - begun
            if silent:
                row["error"] = f"ranks {silent} did not raise: {last_words(error)}"
    left = before - _free(way)
    row["left_on_gpu"] = left
    if left > 64 << 20 and "error" not in row:
        row["error"] = f"{left} bytes of the GPU are still taken after the ranks have ended"
    file.append(row)
    return True


def _killed(rank: int, device: str, folder: str) -> None:
    """Train until the last rank kills itself in the middle of its fourth step, and note what is raised then."""
    run = _StreamRun(rank, device, "twobit")
    for number in range(3):
        run.step(number)
    if rank == dist.get_world_size() - 1:

        def end(_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        next(iter(run.module.parameters())).register_hook(end)  # type: ignore[no-untyped-call]
    try:
        for number in range(3, 1000):
            run.step(number)
            if device == "cuda":
                torch.cuda.synchronize()
    except RuntimeError as error:
        Path(folder, str(rank)).write_text(f"{type(error).__name__}: {error}"[:500], encoding="utf-8")
        # An orderly end would wait for the group that has lost a rank.
        os._exit(0)


def _free(way: Way) -> int:
    """The bytes of the GPU that are free, as a process sees them that ends after that; 0 without one."""
    if way.device != "cuda":
        return 0
    (found,) = run_joined(way, 1, _free_bytes, timeout=60.0)
    return int(found)


def _free_bytes(_rank: int) -> int:
    return torch.cuda.mem_get_info()[0]


def find_stream_rows(
    file: RowsFile, way: Way, world: int, *, deadline: float, small: bool, methods: Sequence[str] | None = None
) -> list[str]:
    """Find all rows of this part that need no comparison with Gloo; return the cases for which there was no time."""
    chosen = fixed_size() if methods is None else list(methods)
    cases = [*(f"host waits, {name}" for name in chosen), "memory"]
    left = find_rows(file, "streams", way, world, _small_case if small else _case, cases, deadline=deadline)
    if not check_killed(file, way, world, deadline):
        left.append("a rank is killed")
    # The last two may spoil the processes in which they run.
    for case, job in (("graph", _small_case if small else _case), ("sanitizer", sanitized)):
        left += find_rows(file, "streams", way, world, job, [case], deadline=deadline)
    return left


def _case(rank: int, device: str, case: str) -> Row:
    return one_case(rank, device, case, small=False)


def _small_case(rank: int, device: str, case: str) -> Row:
    return one_case(rank, device, case, small=True)
