"""A check of the lab itself: TCP transfers over its links, beside the rate that was asked for.

TCP's segments carry 1,448 bytes in frames of 1,514, so at best it reaches 95.6 % of the rate. A transfer keeps it if
every receiver gets at least 90 % of that, and nobody more than the rate; and if the kernel's counters of the
interfaces agree with what was sent. Every pattern runs without a rate too, in the same lab: what the processor does not
move unhindered, no link can be blamed for.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from gradwire.errors import require
from gradwire_lab.netlab.lab import Netlab
from gradwire_lab.netlab.link import Link
from gradwire_lab.netlab.names import PORT
from gradwire_lab.netlab.system import NetlabError, inside

__all__ = ["PATTERNS", "LinkRow", "check"]

PATTERNS = ("one way", "both ways", "ring", "all to one")

_SEGMENT, _FRAME = 1448, 1514
_LEAST = 0.90
_PIECE = 1 << 18
_WARM_UP = 0.5
_PATIENCE = 10.0

Rates = tuple[float, float, float]
"""Bits of payload a second of the receiver that got least, and most; bytes counted over bytes sent."""


@dataclass(frozen=True)
class LinkRow:
    """The measurements of one transfer.

    Args:
        link: link that was asked for.
        workers: number of workers of the lab.
        pattern: pattern of the transfer: who sends to whom.
        best: bits of payload a second that TCP can have.
        unshaped: bits of payload a second without a rate, of the receiver that got least.
        least: bits of payload a second with the rate, of the receiver that got least.
        most: bits of payload a second with the rate, of the receiver that got most.
        counted: bytes that the senders' interfaces counted over what was sent; headers make it a little more than 1.
    """

    link: str
    workers: int
    pattern: str
    best: float
    unshaped: float
    least: float
    most: float
    counted: float

    @property
    def verdict(self) -> str:
        """The verdict: ``kept``, ``missed``, or the reason why neither can be told."""
        if not 1.0 <= self.counted <= 1.1 or self.most > self.best * _FRAME / _SEGMENT:
            return "missed"
        if self.least >= _LEAST * self.best:
            return "kept"
        return "missed" if self.unshaped > self.best else "beyond this machine"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self) | {"verdict": self.verdict}


def check(workers: int, rates: Sequence[str], seconds: float, delay: str = "0ms") -> Iterator[LinkRow]:
    """Measure transfers of every pattern at every rate, and yield a row for each.

    Args:
        workers: number of workers of the lab, >= 2.
        rates: rates, such as ``100mbit``.
        seconds: seconds of each transfer, > 0, after half a second of warm-up, or as long as that if it is less.
        delay: delay of the links.

    Raises:
        ConfigError, NetlabError: the lab cannot be made, as for ``Netlab``.
    """
    links = [Link.parse(rate, delay).in_lab() for rate in rates]
    with Netlab(workers, "none", delay) as lab:
        unshaped = {pattern: _measure(lab, pattern, seconds)[0] for pattern in PATTERNS}
        for rate, link in zip(rates, links, strict=True):
            require(link.rate is not None, "rate", "a number of bits a second: there is nothing to check", rate)
            best = (link.rate or 0) * _SEGMENT / _FRAME
            lab.shape(rate, delay)
            for pattern in PATTERNS:
                yield LinkRow(str(link), workers, pattern, best, unshaped[pattern], *_measure(lab, pattern, seconds))


def flows(pattern: str, workers: int) -> list[tuple[int, int]]:
    """List the senders and receivers of a pattern.

    >>> flows("both ways", 4), flows("all to one", 4)
    ([(0, 1), (1, 0)], [(1, 0), (2, 0), (3, 0)])
    """
    return {
        "one way": [(0, 1)],
        "both ways": [(0, 1), (1, 0)],
        "ring": [(rank, (rank + 1) % workers) for rank in range(workers)],
        "all to one": [(rank, 0) for rank in range(1, workers)],
    }[pattern]


def _measure(lab: Netlab, pattern: str, seconds: float) -> Rates:
    pairs = flows(pattern, lab.workers)
    before = lab.traffic()
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(lab, source, target)) for source, target in pairs]
        time.sleep(min(seconds, _WARM_UP))
        first, start = [stream.received for stream in streams], time.perf_counter()
        time.sleep(seconds)
        last, elapsed = [stream.received for stream in streams], time.perf_counter() - start
    after = lab.traffic()
    arrived = dict.fromkeys((target for _, target in pairs), 0)
    for (_, target), begin, finish in zip(pairs, first, last, strict=True):
        arrived[target] += finish - begin
    rates = [8 * count / elapsed for count in arrived.values()]
    payload = sum(stream.sent for stream in streams)
    frames = sum(after[rank].sent - before[rank].sent for rank in {source for source, _ in pairs})
    return min(rates), max(rates), frames / max(payload, 1)


class Stream:
    """One TCP connection between two workers, on which data flows until it is closed."""

    def __init__(self, lab: Netlab, source: int, target: int) -> None:
        self.sent = self.received = 0
        names = lab.names
        with inside(names.worker(target)):
            listener = socket.create_server((names.address(target), PORT + source))
        with listener, inside(names.worker(source)):
            listener.settimeout(_PATIENCE)
            try:
                self._out = socket.create_connection((names.address(target), PORT + source), _PATIENCE)
                self._in, _ = listener.accept()
            except OSError as error:
                raise NetlabError(f"worker {source} does not reach worker {target}: {error}") from None
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(_PATIENCE)
        self._out.close()
        self._in.close()

    def _send(self) -> None:
        piece = bytes(_PIECE)
        with suppress(OSError):
            while not self._ended.is_set():
                self.sent += self._out.send(piece)
            self._out.shutdown(socket.SHUT_WR)

    def _receive(self) -> None:
        room = bytearray(_PIECE)
        with suppress(OSError):
            while count := self._in.recv_into(room):
                self.received += count
