"""The time of each worker of a lab: it computes, is ready and has no processor, or waits; and the bytes of its link.

Everything is read from outside: the kernel's account of the thread with which a process began, and the counters of the
interface. So any script can be watched, and none is changed.

Why:
    torch computes on the thread that calls it, and a collective blocks this thread: what it does not compute, it waits
    for. Threads that only carry or compress are not counted; where they take the processor from it, it is ready.

    A worker may be several processes, such as a launcher and the training, or the training and its loaders of data. In
    an interval the one that computed most counts.

    What is kept does not grow with time: after ``most`` intervals each two become one. Reading takes some 0.15 ms
    for each worker and interval, so intervals of a lab of more than 8 workers are longer.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gradwire_lab.netlab.names import INTERFACE
from gradwire_lab.netlab.system import counters_in

__all__ = ["Interval", "WorkerTimes", "in_words", "merged", "shares", "since_first_message"]

MOST = 2_000
"""Intervals of a worker."""

EVERY = 0.02
"""Seconds of the first intervals: longer than the kernel's tick of 1 to 10 ms, shorter than a step."""

LAUNCHED = 60.0
"""Seconds in which a launcher has started what it starts."""

FAMILY_SECONDS = (0.1, 1.0)
"""Seconds after which the descendants of a process are looked for again, for which all its threads are read: until
``LAUNCHED``, and after it."""


class Interval(NamedTuple):
    """A short time of one worker.

    Attributes:
        end: seconds since all workers were started.
        seconds: length.
        computed: seconds in which its thread ran.
        ready: seconds in which it could have run, and had no processor.
        sent: bytes that its interface has sent, whole frames.
        received: the same, received.
    """

    end: float
    seconds: float
    computed: float
    ready: float
    sent: int
    received: int

    @property
    def waited(self) -> float:
        """Seconds in which the thread had nothing to do."""
        return max(0.0, self.seconds - self.computed - self.ready)

    def joined(self, after: Interval) -> Interval:
        """Join with the interval that follows."""
        return Interval(
            after.end,
            self.seconds + after.seconds,
            self.computed + after.computed,
            self.ready + after.ready,
            self.sent + after.sent,
            self.received + after.received,
        )


class WorkerTimes:
    """Intervals of workers, which ``watch`` adds while they run.

    Args:
        every: seconds of an interval, > 0.
        most: number of intervals that are kept of a worker, >= 2.

    Attributes:
        intervals: those of each worker so far, in the order of ranks.
    """

    def __init__(self, *, every: float = EVERY, most: int = MOST) -> None:
        self.every, self.most = every, most
        self.intervals: list[list[Interval]] = []

    @contextmanager
    def watch(self, pids: Sequence[int]) -> Iterator[None]:
        """Watch processes and their descendants until the block ends.

        Args:
            pids: pid of the process of each worker, in the order of ranks.
        """
        self.intervals = [[] for _ in pids]
        over = threading.Event()
        thread = threading.Thread(target=self._record, args=(pids, over), name="gradwire-worker-times", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _record(self, pids: Sequence[int], over: threading.Event) -> None:
        begun = time.monotonic()
        every = self.every * max(1.0, len(pids) / 8)
        with ExitStack() as stack:
            watched = [stack.enter_context(closing(_Watched(pid, begun))) for pid in pids]
            while not over.wait(every):
                for intervals, worker in zip(self.intervals, watched, strict=True):
                    with suppress(OSError):  # Its process has ended.
                        intervals.append(worker.since_last())
                if max(map(len, self.intervals)) >= self.most:
                    self.intervals, every = [merged(each) for each in self.intervals], 2 * every


class _Watched:
    """The processes of a worker, and what was last read of them.

    Their files are kept open: to open one takes five times as long as to read it.
    """

    def __init__(self, pid: int, begun: float) -> None:
        self.pid, self.begun, self.last = pid, begun, begun
        self._accounts: dict[int, int] = {}
        self._spent: dict[int, tuple[int, int]] = {}
        self._network: int | None = None
        self._bytes, self._looked = (0, 0), -math.inf

    def close(self) -> None:
        """Close the files."""
        for file in (*self._accounts.values(), *([] if self._network is None else [self._network])):
            os.close(file)

    def since_last(self) -> Interval:
        """Read the interval that ends now.

        Raises:
            OSError: there is no such process any more.
        """
        late = self.last - self.begun > LAUNCHED
        if time.monotonic() - self._looked >= FAMILY_SECONDS[late]:
            self._look()
        before, known = self._spent, self._bytes
        # Right before the counters are read: what comes between them would be a rate that no link has.
        now = time.monotonic()
        if self._network is not None:
            self._bytes = _counters(self._network)
        self._spent = {pid: spent for pid, file in self._accounts.items() if (spent := _times(file)) is not None}
        if self.pid not in self._spent:
            raise ProcessLookupError(self.pid)
        run, ready = max(
            (run - before.get(pid, (0, 0))[0], ready - before.get(pid, (0, 0))[1])
            for pid, (run, ready) in self._spent.items()
        )
        # The kernel adds up what a thread has run at its ticks, which an interval may cut.
        seconds, self.last = now - self.last, now
        computed = min(run / 1e9, seconds)
        received, sent = (after - earlier for after, earlier in zip(self._bytes, known, strict=True))
        return Interval(now - self.begun, seconds, computed, min(ready / 1e9, seconds - computed), sent, received)

    def _look(self) -> None:
        """Look for descendants, and for the interface if it is not known yet."""
        self._looked, family = time.monotonic(), set(_family(self.pid))
        for pid in self._accounts.keys() - family:
            os.close(self._accounts.pop(pid))
        for pid in family - self._accounts.keys():
            with suppress(OSError):
                self._accounts[pid] = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)
        # It is in the namespace of the machine, which may have such an interface, until `ip` has entered the worker's.
        if (
            self._network is None
            and Path(f"/proc/{self.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
        ):
            self._network = os.open(f"/proc/{self.pid}/net/dev", os.O_RDONLY)
            self._bytes = _counters(self._network)


def _counters(file: int) -> tuple[int, int]:
    """Read the bytes received and sent by the interface of a worker."""
    return counters_in(os.pread(file, 1 << 16, 0).decode()).get(INTERFACE, (0, 0))


def _times(file: int) -> tuple[int, int] | None:
    """Read the nanoseconds that a thread has had a processor, and has wanted one; None: it has ended."""
    try:
        run, ready, _ = os.pread(file, 256, 0).split()
    except OSError:
        return None
    return int(run), int(ready)


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from _family(int(child))


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Join each two intervals that follow one another; the last of an odd number stays as it is.

    >>> one = Interval(0.5, 0.5, 0.25, 0.0, 100, 0)
    >>> merged([one, one._replace(end=1.0, sent=300), one._replace(end=1.5)])
    [Interval(end=1.0, seconds=1.0, computed=0.5, ready=0.0, sent=400, received=0), \
Interval(end=1.5, seconds=0.5, computed=0.25, ready=0.0, sent=100, received=0)]
    """
    pairs = [a.joined(b) for a, b in zip(intervals[::2], intervals[1::2], strict=False)]
    return [*pairs, *intervals[len(pairs) * 2 :]]


def since_first_message(workers: Sequence[Sequence[Interval]]) -> list[list[Interval]]:
    """Leave out what was before all workers have sent something, as the imports of their programs, and what came after
    the first of them had ended.

    Returns:
        The intervals of each worker; none of any where some worker has sent nothing.
    """
    first = [next((each.end for each in intervals if each.sent > 0), None) for intervals in workers]
    if None in first:
        return [[] for _ in workers]
    begin, end = max(each for each in first if each is not None), min(each[-1].end for each in workers)
    return [[each for each in intervals if begin <= each.end <= end] for intervals in workers]


def in_words(worker: int, intervals: Sequence[Interval]) -> str:
    """Say in a line what a worker has done in its intervals.

    >>> in_words(0, [Interval(1.0, 1.0, 0.25, 0.05, 10**6, 0), Interval(2.0, 1.0, 1.0, 0.0, 0, 0)])
    'worker 0 computed 62 % and waited 35 % of 2.0 s, and had no processor in 2 %; it sent 1.0 MB, at most 8 Mbit/s'
    """
    whole = shares(intervals)
    computed, waited, ready = (f"{100 * whole[part]:.0f} %" for part in ("computed", "waited", "ready"))
    times = f"computed {computed} and waited {waited} of {whole['seconds']:.1f} s, and had no processor in {ready}"
    return f"worker {worker} {times}; it sent {whole['sent'] / 1e6:.1f} MB, at most {whole['peak'] / 1e6:.0f} Mbit/s"


def shares(intervals: Sequence[Interval]) -> dict[str, Any]:
    """Return the shares of the time, its seconds, the bytes sent, and the highest rate in bits a second.

    >>> shares([Interval(1.0, 1.0, 0.25, 0.0, 10**6, 0)])["waited"]
    0.75
    """
    seconds = sum(each.seconds for each in intervals)
    parts = ("computed", "ready", "waited")
    return {
        **{part: sum(getattr(each, part) for each in intervals) / (seconds or 1.0) for part in parts},
        "seconds": seconds,
        "sent": sum(each.sent for each in intervals),
        "peak": max((8 * each.sent / each.seconds for each in intervals), default=0.0),
    }
