"""Check of everything that needs a GPU, in one command: the kernels, DDP, and the cost of each method.

It needs this source tree and torch, and neither pytest nor a network:

    PYTHONPATH=src:lab/src python -m gradwire_lab.experiments.gpu_check --json gpu.json

Parts, from cheap to dear, each in processes of its own, so that one that ends badly takes nothing else with it. Those
that compare kernels have several, because most of their time goes into compiling:

    operations    every GPU kernel beside its reference, with small arguments and their variants
    methods       what an exchange calls of every method, beside the reference
    ddp nccl      DDP models of one rank over NCCL, beside the same on the CPU
    ddp gloo      DDP models of two ranks on one GPU, CUDA tensors over Gloo, beside the same on the CPU
    times         launches, bytes and time of every method at growing sizes, beside a copy and torch's bf16 hook

Invariants:
    * It ends in the time that it was given. A part gets a share of the time that is left, and leaves what it does not
      use to the next ones; what did not come in time is listed as left out.
    * The file is complete after each part, and after each row that came some seconds after the last one was written.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import starmap
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire import registry
from gradwire._files import replace_text
from gradwire.compressors import capabilities
from gradwire.errors import ConfigError, GradwireError, require
from gradwire.frontends.ddp import compress_ddp
from gradwire.kernels.native import reference_forced
from gradwire.testing.processes import RankFailedError, run_ranks
from gradwire_lab.bench import gpu_kernels
from gradwire_lab.bench.device_times import SIZES, time_rows
from gradwire_lab.bench.gpu_kernels import INTERPRETED, method_rows, operation_rows, with_kernels
from gradwire_lab.bench.machine import environment
from gradwire_lab.experiments.replay import Replayed

__all__ = ["MINUTES", "NO_GPU", "GpuReport", "PartReport", "check_gpu", "lines", "main", "writer"]

MINUTES = 7.5
"""Minutes that the check may take."""

NO_GPU = (
    "a GPU is needed, and torch finds none here; --interpreter compares the kernels without one, "
    "in Triton's interpreter"
)
"""Message where there is no GPU."""

METHOD_SIZES = (33, 1000, 5003, 100_003)
"""Elements of the methods' gradients; in the interpreter the first two."""

MAIN = ("none", "bf16", "eden", "twobit", "onebit", "qsgd", "topk", "powersgd", "fp16", "efsignsgd", "dgc", "signsgd")
"""The methods that come first, should the time not do for all."""

SHAPES = {"first": (64, 3, 7, 7), "bias": (64,), "second": (300, 257), "head": (1000, 65)}
"""Parameters of the models: several buckets, and sizes that are no power of two."""

STEPS = 3
CAP = 0.2
"""Megabytes of a bucket of the models."""

MOST_PROCESSES = 8
"""Processes that compile and compare kernels at once, where there are as many processors."""

_GRACE = 5.0
"""Seconds before the end in which nothing new begins."""

Row = dict[str, Any]


@dataclass
class PartReport:
    """The findings of one part of the check.

    Args:
        name: name in the module's list.
        rows: rows in the order in which they came.
        left_out: rows for which there was no time; empty: none.
        error: error that ended the part; empty: none.
        seconds: seconds that the part took.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    left_out: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def compared(self) -> list[Row]:
        """The rows that were not left out."""
        return [row for row in self.rows if "left_out" not in row]

    @property
    def wrong(self) -> list[Row]:
        """The rows that failed, or differ from the expected result."""
        return [row for row in self.rows if row.get("difference") or row.get("error") or row.get("waits")]


@dataclass
class GpuReport:
    """The findings of the check.

    Args:
        where: the machine and its GPU.
        parts: parts of the check, in their order.
        seconds: seconds of the whole check.
    """

    where: Row
    parts: list[PartReport] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def broken(self) -> list[str]:
        """Sentences on what is broken; empty if every comparison holds."""
        found = [f"{part.name}: {part.error}" for part in self.parts if part.error]
        silent = (part for part in self.parts if not (part.compared or part.error))
        found += [": ".join(filter(None, (part.name, "nothing was compared", part.left_out))) for part in silent]
        return found + [f"{part.name}: {_described(row)}" for part in self.parts for row in part.wrong]

    def as_dict(self) -> Row:
        """Return the report for JSON."""
        parts = {
            part.name: {
                "seconds": part.seconds,
                "error": part.error,
                "left_out": part.left_out,
                "compared": len(part.compared),
                "wrong": len(part.wrong),
                "rows": part.rows,
            }
            for part in self.parts
        }
        return {"where": self.where, "seconds": self.seconds, "broken": self.broken, "parts": parts}


def _ordered() -> list[str]:
    names = registry.usable("compressors")
    return [*(name for name in MAIN if name in names), *(name for name in names if name not in MAIN)]


def check_gpu(
    *,
    minutes: float = MINUTES,
    interpreter: bool = False,
    methods: Sequence[str] = (),
    sizes: Sequence[int] = SIZES,
    note: Callable[[GpuReport], object] = lambda _: None,
) -> GpuReport:
    """Run all parts on the first GPU, or those that need none in Triton's interpreter.

    Args:
        minutes: minutes that the check may take, > 0.
        interpreter: compare the kernels on the CPU, on small sizes, and leave out what needs a GPU.
        methods: names of compressors; none: all.
        sizes: numbers of elements of the tensors that are timed.
        note: called with the report so far, after each part and, some seconds apart, after rows.

    Raises:
        ConfigError: there is no GPU, or no Triton.
    """
    require(minutes > 0, "minutes", "a number > 0", minutes)
    for name in methods:
        registry.find("compressors", name)
    info = {**environment(), "triton": _triton()}
    if not interpreter:
        if not torch.cuda.is_available():
            raise ConfigError(NO_GPU)
        if reference_forced:
            raise ConfigError("GRADWIRE_KERNELS must not be reference, which runs plain torch in place of the kernels")
        info |= _gpu()
    if not info["triton"]:
        raise ConfigError("Triton is needed, and it is not installed here: the CUDA build of torch brings it")
    report, start = GpuReport(info | {"interpreter": interpreter}), time.monotonic()
    end = start + 60 * minutes - min(_GRACE, 6 * minutes)
    chosen, device = list(methods) or _ordered(), INTERPRETED if interpreter else "cuda"
    small = METHOD_SIZES[:2] if interpreter else METHOD_SIZES
    several = 1 if interpreter else min(MOST_PROCESSES, os.cpu_count() or 1)
    operations = list(with_kernels())
    shares: list[tuple[str, float, Callable[..., Iterator[Row]], list[tuple[Any, ...]]]] = [
        ("operations", 0.3, _operations, [(device, operations[i::several]) for i in range(several)]),
        ("methods", 0.4, _methods, [(device, chosen[i::several], small) for i in range(min(several, len(chosen)))]),
    ]
    if not interpreter:
        shares += [
            ("ddp nccl", 0.4, _ddp, [("nccl", 1, chosen)]),
            ("ddp gloo", 0.5, _ddp, [("gloo", 2, chosen)]),
            ("times", 1.0, _times, [(device, chosen, tuple(sizes))]),
        ]
    for name, share, function, work in shares:
        part = PartReport(name)
        report.parts.append(part)
        begun = time.monotonic()
        deadline = begun + share * max(0.0, end - begun)
        _fill(part, function, work, deadline, report, note, interpreted=interpreter)
        part.seconds, report.seconds = time.monotonic() - begun, time.monotonic() - start
        note(report)
    return report


def _gpu() -> Row:
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": found.name,
        "gpus": torch.cuda.device_count(),
        "capability": f"{found.major}.{found.minor}",
        "memory": found.total_memory,
        "cuda": torch.version.cuda,
        "nccl": dist.is_nccl_available(),
    }


def _triton() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def _operations(_: float, device: str, names: Sequence[str]) -> Iterator[Row]:
    return operation_rows(device, names)


def _methods(_: float, device: str, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Row]:
    return method_rows(device, sizes, [registry.build("compressors", name) for name in names])


def _times(deadline: float, device: str, names: Sequence[str], sizes: Sequence[int]) -> Iterator[Row]:
    """Time the most important methods at all sizes, then the others."""
    first = [name for name in names if name in MAIN]
    for chosen in (first, [name for name in names if name not in first]):
        compressors = [registry.build("compressors", name) for name in chosen]
        hook = chosen is first
        yield from time_rows(device, compressors, sizes, hook=hook, seconds_left=lambda: deadline - time.monotonic())


def _ddp(deadline: float, backend: str, world: int, names: Sequence[str]) -> Iterator[Row]:
    """Compare the gradients of models on a GPU with those of the same models on the CPU.

    A gradient is the parameter itself, so that both begin with the same bits.

    Raises:
        TimeoutError: the ranks did not finish: they were slow, or one waits for ever.
        RankFailedError: a rank failed.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    left = max(1.0, deadline - time.monotonic())
    try:
        # Most of the time goes into kernels that are compiled, and into starting NCCL; the CPU has neither.
        found = run_ranks(world, _train, device, names, deadline - left / 3, backend=backend, timeout=left)
        left = max(1.0, deadline - time.monotonic())
        wanted = run_ranks(world, _train, "cpu", list(found[0]), deadline - left / 10, timeout=left)
    except RankFailedError as error:
        if error.late:
            raise TimeoutError from None
        raise
    for name in names:
        row: Row = {"method": name, "backend": backend, "ranks": world}
        if name not in found[0] or name not in wanted[0]:
            yield row | {"left_out": "the time was over"}
        elif errors := [result[name] for result in (*found, *wanted) if isinstance(result[name], str)]:
            yield row | {"error": errors[0]}
        else:
            pairs = ((got[name], want[name]) for got, want in zip(found, wanted, strict=True))
            said = [text for text in starmap(_apart, ((name, *pair) for pair in pairs)) if text]
            yield row | {"difference": said[0] if said else None}


def _train(rank: int, device: str, names: Sequence[str], deadline: float) -> dict[str, Any]:
    """The result of each step of each method on this rank, or its error; methods are missing if time ran out."""
    done: dict[str, Any] = {}
    for name in names:
        over = torch.tensor(float(time.monotonic() > deadline), device=device)
        dist.all_reduce(over, dist.ReduceOp.MAX)
        if float(over):
            break
        try:
            done[name] = _steps(rank, device, name)
        except (GradwireError, RuntimeError) as error:
            done[name] = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            if dist.get_world_size() > 1:
                # The other ranks may be in another call than this one.
                raise
    return done


def _steps(rank: int, device: str, name: str) -> list[np.ndarray[Any, Any]]:
    module = Replayed(SHAPES, seed=rank).to(device)
    model = DistributedDataParallel(module, init_sync=False, bucket_cap_mb=CAP)
    state = compress_ddp(model, name)
    try:
        arrived = []
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            model(torch.zeros((), requires_grad=True, device=device)).backward()
            # The copy to the CPU waits for the device.
            means = [param.grad.flatten().cpu() for param in module.parameters() if param.grad is not None]
            arrived.append(torch.cat(means).numpy())
        return arrived
    finally:
        state.close()


def _apart(name: str, found: Sequence[np.ndarray[Any, Any]], wanted: Sequence[np.ndarray[Any, Any]]) -> str | None:
    """Describe where the steps of a method differ; None if they are equal, or differ by rounding for a method that uses
    a BLAS.
    """
    portable = capabilities.portable(registry.build("compressors", name))
    for number, (got, want) in enumerate(zip(found, wanted, strict=True), 1):
        if np.array_equal(got.view(np.uint32), want.view(np.uint32)):
            continue
        far = float(np.abs(got - want).max())
        if portable or not far <= gpu_kernels.NEAR * float(np.abs(want).max()):
            count = int((got.view(np.uint32) != want.view(np.uint32)).sum())
            return f"step {number}: {count} of {got.size} elements differ from those on the CPU, by {far:.2g} at most"
    return None


def _fill(
    part: PartReport,
    function: Callable[..., Iterator[Row]],
    work: Sequence[tuple[Any, ...]],
    deadline: float,
    report: GpuReport,
    note: Callable[[GpuReport], object],
    *,
    interpreted: bool,
) -> None:
    """Collect the rows of a part until it ends or the deadline comes."""
    noted = time.monotonic()
    try:
        for row in _rows(function, work, deadline, interpreted=interpreted):
            part.rows.append(row)
            if time.monotonic() > noted + 5.0:
                note(report)
                noted = time.monotonic()
    except TimeoutError:
        part.left_out = f"what comes after these {len(part.rows)} rows: the time of this part was over"
    except RankFailedError as error:
        part.error = str(error).strip()[-800:]
    except GradwireError as error:
        part.error = str(error)


class _PartFailedError(GradwireError):
    """The process of a part ended with an error."""


def _rows(
    function: Callable[..., Iterator[Row]], work: Sequence[tuple[Any, ...]], deadline: float, *, interpreted: bool
) -> Iterator[Row]:
    """Yield the rows of a function, which runs in a process of its own for each of these arguments.

    Raises:
        TimeoutError: the deadline came.
        GradwireError: the function failed, or a process died; the rows of the others have come before.
    """
    if function is _ddp:
        # It starts processes, and does nothing else on the GPU.
        for arguments in work:
            yield from function(deadline, *arguments)
        return
    running: dict[Connection, SpawnProcess] = {}
    failed: list[str] = []
    try:
        with _environment(TRITON_INTERPRET="1" if interpreted else None):
            for arguments in work:
                receive, process = _started(function, deadline, arguments)
                running[receive] = process
        while running and (left := deadline - time.monotonic()) > 0:
            for receive in cast("list[Connection]", wait(list(running), left)):
                kind, value = _received(receive, running[receive])
                if kind == "row":
                    yield value
                    continue
                _end({receive: running.pop(receive)})
                failed += [value] if kind == "error" else []
        if failed:
            raise _PartFailedError("\n".join(failed))
        if running:
            raise TimeoutError
    finally:
        _end(running)


def _started(
    function: Callable[..., Iterator[Row]], deadline: float, arguments: tuple[Any, ...]
) -> tuple[Connection, SpawnProcess]:
    context = mp.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(send, function, deadline, arguments), daemon=True)
    process.start()
    send.close()
    return receive, process


def _received(receive: Connection, process: SpawnProcess) -> tuple[str, Any]:
    try:
        return cast("tuple[str, Any]", receive.recv())
    except EOFError:
        process.join(10.0)
        return "error", f"its process died with exit code {process.exitcode}"


def _end(running: Mapping[Connection, SpawnProcess]) -> None:
    for process in running.values():
        process.kill()
    for receive, process in running.items():
        process.join()
        receive.close()


def _work(
    send: Connection, function: Callable[..., Iterator[Row]], deadline: float, arguments: tuple[Any, ...]
) -> None:
    try:
        if os.environ.get("TRITON_INTERPRET") == "1":
            torch.set_num_threads(1)
        for row in function(deadline, *arguments):
            send.send(("row", row))
        send.send(("end", ""))
    except BaseException:
        send.send(("error", traceback.format_exc()[-2000:]))


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Set or unset variables of the environment, and restore them at the end."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _described(row: Row) -> str:
    """Describe a wrong row in one line."""
    names = ("operation", "method", "variant", "step", "size", "backend", "ranks")
    what = ", ".join(f"{name} {row[name]}" for name in names if row.get(name))
    return f"{what}: {row.get('difference') or row.get('error') or row.get('waits')}"


def lines(report: GpuReport) -> list[str]:
    """Write the report for people: the comparisons, a table of times, what was left out, and the verdict."""
    where = report.where
    gpu = "Triton's interpreter" if where["interpreter"] else f"{where['gpu']}, CUDA {where['cuda']}"
    found = [f"{gpu}; {where['machine']}; torch {where['torch']}, triton {where['triton']}; {report.seconds:.0f} s", ""]
    for part in report.parts:
        said = f"{part.name:<12} {len(part.compared):>5} rows, {len(part.wrong)} wrong, {part.seconds:.0f} s"
        found.append(said + (f"; FAILED: {part.error.splitlines()[-1]}" if part.error else ""))
    rows = {part.name: part.rows for part in report.parts}
    times = [row for row in rows.get("times", ()) if "seconds" in row]
    if times:
        found += ["", *_table(times)]
    left = [f"left out: {part.name}: {part.left_out}" for part in report.parts if part.left_out]
    for part in report.parts:
        left += [f"left out: {part.name}: {_name(row)}: {row['left_out']}" for row in part.rows if "left_out" in row]
    found += ["", *left] if left else [""]
    return found + ([f"WRONG: {text}" for text in report.broken] or ["holds"])


def _name(row: Row) -> str:
    return ", ".join(str(row[name]) for name in ("operation", "method", "variant", "size") if row.get(name))


def _table(rows: Sequence[Row]) -> list[str]:
    heads = ("method", "elements", "operations", "launches", "bytes/element", "ms", "copy ms", "ratio", "bf16 hook")
    hook = {row["size"]: row["seconds"] for row in rows if row["method"] == "torch_bf16"}
    cells = [
        (
            row["method"],
            f"2^{row['size'].bit_length() - 1}",
            str(row["operations"]),
            str(row.get("launches", "-")),
            f"{row['bytes_per_element']:.1f}",
            f"{1e3 * row['seconds']:.3f}",
            f"{1e3 * row['copy_seconds']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['seconds'] / hook[row['size']]:.2f}" if row["size"] in hook else "-",
        )
        for row in rows
    ]
    widths = [max(len(row[place]) for row in (heads, *cells)) for place in range(len(heads))]
    return ["  ".join(map(_aligned, row, widths, range(len(heads)))).rstrip() for row in (heads, *cells)]


def _aligned(cell: str, width: int, place: int) -> str:
    return f"{cell:>{width}}" if place else f"{cell:<{width}}"


def main(words: Sequence[str] | None = None) -> int:
    """Run the check without click and rich; ``gradwire check gpu`` is the same command.

    Args:
        words: arguments of the command line; None: those of this process.

    Returns:
        The exit code: 0 where everything that was compared holds, 1 where something does not, 2 where nothing can be.
    """
    parser = argparse.ArgumentParser(prog="python -m gradwire_lab.experiments.gpu_check", description=NO_GPU)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--method", action="append", default=[], help="May be repeated. Default: all.")
    parser.add_argument("--interpreter", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    told = parser.parse_args(words)
    try:
        report = check_gpu(
            minutes=told.minutes, interpreter=told.interpreter, methods=told.method, note=writer(told.json)
        )
    except ConfigError as error:
        sys.stderr.write(f"gradwire: {error}\n")
        return 2
    sys.stdout.write("\n".join(lines(report)) + "\n")
    return int(bool(report.broken))


def writer(path: Path | None) -> Callable[[GpuReport], None]:
    """A function that writes the report so far to a file; None without a file."""
    return lambda report: None if path is None else replace_text(path, json.dumps(report.as_dict(), indent=2) + "\n")


if __name__ == "__main__":
    # The processes that it starts find what they run by the name of the module.
    from gradwire_lab.experiments import gpu_check

    raise SystemExit(gpu_check.main())
