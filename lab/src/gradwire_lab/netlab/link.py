"""A link: its rate in bits a second, and its delay.

A port is shaped by a token bucket (``tc tbf``) that counts whole Ethernet frames, so TCP with segments of 1,448 bytes
reaches 95.6 % of the rate, as on a real cable. The bucket holds a millisecond of the rate: what it holds passes at
once after a pause, so a message is early by a millisecond at most. A smaller one costs more wake-ups of the processor.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from gradwire.auto.link_cost import LATENCY, MESSAGE, Wire
from gradwire.errors import ConfigError, require

__all__ = ["PAYLOAD_SHARE", "Link"]

_SEGMENT, _FRAME, _ACKNOWLEDGEMENT = 1448, 1514, 66

PAYLOAD_SHARE = _SEGMENT / (_FRAME + _ACKNOWLEDGEMENT / 2)
"""The share of a link's rate that payload has: TCP segments of 1,448 bytes in frames of 1,514, and on the way back,
where payload travels too, an acknowledgement of 66 bytes for every second one."""

_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SLOWEST, _FASTEST = 10**6, 10**14
"""The limits of any link: predictions are made on paper, too, and for links inside a machine."""

_FASTEST_IN_LAB = 10**11
_LONGEST_DELAY = 1.0

_BUCKET_SECONDS = 1e-3
_LEAST_BUCKET = 16 * 1024
"""Ten frames: at 100 Mbit/s a millisecond would hold eight, and a bucket must hold what arrives in a timer's delay."""

_QUEUE_SECONDS = 20e-3
"""Seconds of traffic that a port of the switch keeps before it drops, besides the bucket."""

_HOST_QUEUE_SECONDS = 0.2
"""The same at the worker's end. A host does not drop what it sends itself: its interface holds a thousand frames, and
TCP waits for them. With 20 ms a worker that sends to three peers at once lost one packet in a hundred here."""


@dataclass(frozen=True)
class Link:
    """One worker's link, the same in both directions.

    Args:
        rate: bits a second, 1 Mbit/s to 100 Tbit/s; in a lab to 100 Gbit/s; None: not shaped.
        delay: seconds from one worker to another, 0 to 1.

    Raises:
        ConfigError: a number out of range.

    Example:
        >>> Link.parse("2.5gbit", "1ms")
        Link(rate=2500000000, delay=0.001)
        >>> Link.parse("none").rate is None
        True
    """

    rate: int | None = None
    delay: float = 0.0

    def __post_init__(self) -> None:
        allowed = self.rate is None or _SLOWEST <= self.rate <= _FASTEST
        require(allowed, "Link.rate", "in [1mbit, 100tbit], or None", self.rate)
        require(0 <= self.delay <= _LONGEST_DELAY, "Link.delay", "in [0, 1] seconds", self.delay)

    @classmethod
    def parse(cls, rate: str, delay: str = "0ms") -> Link:
        """Read a link from text: ``100mbit``, ``2.5gbit`` or ``none``, and ``500us`` or ``1ms``.

        Raises:
            ConfigError: the text is not of this form, or out of range.
        """
        bits = None if rate == "none" else round(_quantity("rate", rate, _UNITS, "100mbit, 2.5gbit or none"))
        return cls(bits, _quantity("delay", delay, _TIMES, "500us, 1ms or 0.1s"))

    @classmethod
    def read(cls, text: str) -> Link:
        """Read a link that a lab can have, as suites and records name it; the inverse of ``str``.

        Raises:
            ConfigError: the text is refused, as by ``parse`` and ``in_lab``.

        Example:
            >>> Link.read("1gbit+1ms") == Link.parse("1gbit", "1ms"), Link.read("none") == Link()
            (True, True)
        """
        rate, _, delay = text.partition("+")
        return cls.parse(rate, delay or "0ms").in_lab()

    def in_lab(self) -> Self:
        """Return this link if a lab can have it.

        Raises:
            ConfigError: faster than a lab shapes.
        """
        require((self.rate or 0) <= _FASTEST_IN_LAB, "Link.rate", "at most 100gbit in a lab", str(Link(self.rate)))
        return self

    def wire(self, workers: int, latency: float = LATENCY, message: float = MESSAGE) -> Wire:
        """Make the model of this link, from whose nominal rate the overhead of TCP and Ethernet is subtracted."""
        rate = math.inf if self.rate is None else self.rate / 8 * PAYLOAD_SHARE
        # A sender waits until its receiver has said that it is ready, so a message passes the link twice.
        return Wire(workers, rate, latency + 2 * self.delay, message)

    def __str__(self) -> str:
        """Format the link as on the command line.

        >>> str(Link.parse("1000mbit", "1ms")), str(Link())
        ('1gbit+1ms', 'none')
        """
        if self.rate is None:
            text = "none"
        else:
            unit = next(name for name in reversed(_UNITS) if self.rate >= _UNITS[name])
            text = f"{self.rate / _UNITS[unit]:.10g}{unit}"
        return f"{text}+{1e3 * self.delay:g}ms" if self.delay else text

    @property
    def bucket(self) -> int:
        """The bytes that may pass at once after a pause."""
        return max(_LEAST_BUCKET, round((self.rate or 0) / 8 * _BUCKET_SECONDS))

    def shaper(self, device: str, *, near: bool = False, netem: bool = True) -> list[str]:
        """Lines for ``tc -batch`` that shape the traffic leaving a device that has no queueing discipline.

        Args:
            device: name of the device.
            near: true: this is the worker's end, which delays, too; else a port of the switch.
            netem: false: something else delays.
        """
        lines, parent = [], "root"
        if self.rate is not None:
            held = _HOST_QUEUE_SECONDS if near else _QUEUE_SECONDS
            queue = f"burst {self.bucket} latency {1e3 * (held + self.delay):g}ms"
            lines.append(f"qdisc add dev {device} root handle 1: tbf rate {self.rate}bit {queue}")
            parent = "parent 1:1"
        if near and self.delay and netem:
            delay = f"netem delay {1e6 * self.delay:.0f}us limit {self._in_flight}"
            lines.append(f"qdisc add dev {device} {parent} {delay}")
        return lines

    @property
    def _in_flight(self) -> int:
        """The number of packets that netem may hold: those of the delay and of the queue, at the full rate."""
        return 1000 + int((self.rate or _FASTEST_IN_LAB) / 8 * (self.delay + _HOST_QUEUE_SECONDS) / 1500)


def _quantity(name: str, text: str, units: dict[str, float] | dict[str, int], allowed: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.strip().lower())
    if not found or found[2] not in units:
        raise ConfigError(f"{name} must be written as {allowed}, got {text!r}")
    return float(found[1]) * units[found[2]]
