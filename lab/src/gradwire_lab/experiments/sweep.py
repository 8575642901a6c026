"""Sweep: the runs of a suite, one after the other, each recorded as soon as it has ended.

Invariants:
    * A run is in the file of results or it is not, and a run that is there is not made again. So a sweep may be killed
      at any moment and started again.
    * Runs of the same workers and link share one group of processes, because starting one takes as long as a short run.

Failure modes:
    * A run that fails ends its group: it is recorded, and the next ones get a group of their own.
    * A run that still goes on when the time is over is stopped, and is not recorded.
"""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import itertools
import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rich.console import Console

from gradwire.errors import ConfigError, GroupError, is_int, require
from gradwire_lab.experiments.estimates import Estimates
from gradwire_lab.experiments.job import Job, failed, perform
from gradwire_lab.experiments.launch import OutOfTimeError, end_with_parent, launch
from gradwire_lab.experiments.records import Record, RunSettings, append, check, counted, read
from gradwire_lab.netlab import Link, lab_for

__all__ = ["GRACE", "Order", "Standing", "duration", "standing", "sweep", "to_the_end"]

GRACE = 10.0
"""Seconds that a run may take beyond the end of the time: an estimate is none to the second."""

RUNS_OF_A_GROUP = 40
"""Number of runs after which a group is replaced: each run leaves a process group behind that torch cannot take
back."""


@dataclass(frozen=True)
class Order:
    """The settings of a sweep.

    Args:
        jobs: runs of the sweep, in their order.
        results: file of records.
        deadline: ``time.time()`` after which no run is to end; one that is still running ``GRACE`` seconds later is
            stopped. None: whenever.
        retry: runs that failed are made again.
        timeout: seconds that workers wait for each other.
        parallel: number of groups at the same time, >= 1; with more than one, times mean nothing, and the records'
            environment says so under ``jobs``.
    """

    jobs: Sequence[Job]
    results: Path
    deadline: float | None = None
    retry: bool = False
    timeout: float = 600.0
    parallel: int = 1

    def __post_init__(self) -> None:
        require(is_int(self.parallel, 1), "parallel", "an integer >= 1", self.parallel)


@dataclass(frozen=True)
class Standing:
    """The outcome of the runs so far, and the runs that are left.

    Args:
        ok: ended well, once at least.
        failed: the records of those that did not.
        left: not made yet.
        estimates: estimates of the time that a run takes.
    """

    ok: int
    failed: Sequence[Record]
    left: Sequence[Job]
    estimates: Estimates = field(repr=False)

    @property
    def seconds(self) -> float | None:
        """The seconds that the rest will take; None if not known."""
        return self.estimates.total(job.settings for job in self.left)


def standing(order: Order) -> Standing:
    """Read the results; failed runs count as left if they are to be made again."""
    records = known(order)
    last = counted(records)
    mine = [last[job.settings.id] for job in order.jobs if job.settings.id in last]
    bad = [record for record in mine if record.status != "ok"]
    final = {record.settings.id for record in mine if record.status == "ok" or not order.retry}
    left = [job for job in order.jobs if job.settings.id not in final]
    return Standing(len(mine) - len(bad), bad, left, Estimates(records))


def known(order: Order) -> list[Record]:
    """Read the records in the file."""
    return list(read(order.results)) if order.results.exists() else []


def sweep(order: Order) -> Standing:
    """Make the runs that are left.

    Raises:
        ConfigError: another sweep writes to the same file, or it is no file of results; links need root.
        GroupError: no group of workers can be started at all.
        KeyboardInterrupt: the user stopped the sweep.
    """
    with only_one(order.results):
        check(order.results)
        left = standing(order).left
        if order.parallel == 1:
            make(order, left)
        else:
            side_by_side(order, left)
        return standing(dataclasses.replace(order, retry=False))


def to_the_end(order: Callable[[], Order]) -> Standing:
    """Make the runs, then those that depend on their results; a failed run is tried once more."""
    made = order()
    while True:
        after = sweep(made)
        known = {job.settings.id for job in made.jobs}
        made = dataclasses.replace(order(), retry=False)
        if all(job.settings.id in known for job in made.jobs):
            return after


@contextmanager
def only_one(results: Path) -> Iterator[None]:
    """Lock the results file against other sweeps; the lock of a process that was killed is void."""
    # One file may have several names.
    named = results.resolve()
    place = named.with_name(f"{named.name}.lock")
    try:
        with place.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise ConfigError(f"{results} is being written by another sweep: wait for it, or name another file") from None


def side_by_side(order: Order, left: Sequence[Job]) -> None:
    """Make the groups in several processes, each of which takes its share in order."""
    spawn = multiprocessing.get_context("spawn")
    lanes = [spawn.Process(target=lane, args=(order, left[k :: order.parallel])) for k in range(order.parallel)]
    try:
        with _deaf_to_interrupts():
            for process in lanes:
                process.start()
        for process in lanes:
            process.join()
    except BaseException:
        for process in lanes:
            process.terminate()
            process.join()
        raise
    if any(process.exitcode for process in lanes):
        raise GroupError("a part of the sweep ended early: what it said is above")


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let processes that are started in the block see no Ctrl-C, not even while they import: this one ends them."""
    # It unblocks the signal in whoever starts it, and is started once.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lane(order: Order, left: Sequence[Job]) -> None:
    """Run one of several processes, which ends with the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        make(order, left)
    except KeyboardInterrupt:  # The launcher of a group makes one of SIGTERM.
        raise SystemExit(1) from None


def make(order: Order, left: Sequence[Job]) -> None:
    """Make group after group until nothing is left that fits into the time."""
    waiting = in_time(order, left)
    while waiting:
        _, mates = next(itertools.groupby(waiting, key=company))
        begun = together(order, list(mates)[:RUNS_OF_A_GROUP])
        waiting = in_time(order, [job for job in waiting if job.settings.id not in begun])


def together(order: Order, mates: Sequence[Job]) -> set[str]:
    """Make one group, and return the ids of the runs that it began."""
    settings = mates[0].settings
    with tempfile.TemporaryDirectory() as folder, lab_for(settings.workers, Link.read(settings.link)) as lab:
        begun = Path(folder) / "begun"
        begun.touch()
        until = None if order.deadline is None else order.deadline + GRACE
        options: dict[str, Any] = {"timeout": order.timeout, "lab": lab, "backend": settings.backend, "until": until}
        before = Counter(record.settings.id for record in known(order))
        try:
            launch(settings.workers, serve, order, mates, begun, **options)
        except GroupError as error:
            ids = begun.read_text(encoding="utf-8").split()
            if not (ids or isinstance(error, OutOfTimeError)):
                raise
            after = Counter(record.settings.id for record in known(order))
            # A run whose record is in the file has ended, whatever happened to the group then.
            running = [key for key in ids[-1:] if after[key] == before[key]]
            broken = [job for job in mates if job.settings.id in running]
            conclude(order, broken, error)
        return set(begun.read_text(encoding="utf-8").split())


def conclude(order: Order, broken: Sequence[Job], error: GroupError) -> None:
    """Record the run in which a group ended early as failed; a run that only ran out of time is left for later."""
    if broken and not isinstance(error, OutOfTimeError):
        note(order, failed(broken[0], error))
    else:
        say(f"{described(broken[0].settings)}: left, because {error}" if broken else f"a group ended: {error}")


def company(job: Job) -> tuple[object, ...]:
    """The key of a group: runs with the same key may share it."""
    settings = job.settings
    return settings.workers, settings.link, settings.backend, settings.device


def in_time(order: Order, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that are expected to end in time, judged by earlier ones; a first of its kind is always allowed."""
    if order.deadline is None:
        return list(jobs)
    estimates, rest = standing(order).estimates, order.deadline - time.time()
    return [job for job in jobs if (estimates.of(job.settings) or 0.0) < rest]


def serve(order: Order, jobs: Sequence[Job], begun: Path) -> None:
    """Make one run after the other on each worker of a group; worker 0 decides, records and tells the others."""
    first = dist.get_rank() == 0
    for job in jobs:
        go = [first and bool(in_time(order, [job]))]
        dist.broadcast_object_list(go, src=0)
        if not go[0]:
            continue
        if first:
            with begun.open("a", encoding="utf-8") as file:
                file.write(f"{job.settings.id}\n")
        record = perform(job)
        if record is not None:
            note(order, record)
        # The model and what exchanges its gradients hold each other, and through them the threads of a process group.
        gc.collect()


def note(order: Order, record: Record) -> None:
    """Write a record, and report how far the sweep is."""
    if order.parallel > 1:
        record = dataclasses.replace(record, environment={**record.environment, "jobs": order.parallel})
    append(order.results, record)
    now, settings = standing(dataclasses.replace(order, retry=False)), record.settings
    done = len(order.jobs) - len(now.left)
    # Workers whose parameters differ have a quality, too.
    if record.status != "ok" or record.quality is None:
        found = f"FAILED: {record.error}"
    else:
        found = f"{record.measure} {record.quality:.4g}"
    rest = now.seconds
    ahead = "" if rest is None else f", about {duration(rest / order.parallel)} to go"
    say(f"[{done}/{len(order.jobs)}{ahead}] {described(settings)}: {found}")


def described(settings: RunSettings) -> str:
    """Describe a run for people."""
    rate = f" at lr {settings.recipe['lr']}" if "lr" in settings.recipe else ""
    return f"{settings.task} {settings.method}{rate}, {settings.workers} workers, {settings.link}, seed {settings.seed}"


def say(text: str) -> None:
    """Report progress to the person who waits."""
    Console(stderr=True, markup=False, highlight=False).print(text, soft_wrap=True)


def duration(seconds: float) -> str:
    """Format a duration for people.

    >>> duration(50), duration(600), duration(5400)
    ('50 s', '10 min', '1.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
