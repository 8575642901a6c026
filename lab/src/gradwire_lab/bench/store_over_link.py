"""The distributed store over real links of a given rate: step times beside the least that the cable allows.

Every server and every worker is a machine of its own in a ``netlab``. In a step all workers push all keys and pull them
again; no pull is answered before every push is in, so the server's cable first carries W P bytes in and then W V bytes
out, and the step cannot be shorter than these over the rate. The rate counts whole Ethernet frames, of which TCP's
bytes are 95.6 %; the least time counts payload alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from gradwire.kvstore.protocol.compression import parse
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.statistics import summarise
from gradwire_lab.bench.storegroup import StoreGroup
from gradwire_lab.netlab import Netlab

__all__ = ["least_seconds", "rows"]

Row = dict[str, Any]


def least_seconds(pushed: int, pulled: int, workers: int, servers: int, rate: float) -> float:
    """The least time of a step, if only the servers' cables count.

    Args:
        pushed: bytes that a worker pushes.
        pulled: bytes that it pulls.
        workers: number of workers.
        servers: number of servers, each with an equal share of the bytes.
        rate: rate of a cable, in bits a second.

    Example:
        >>> least_seconds(10**6, 10**6, 2, 1, 10**8)
        0.32
    """
    return 8 * workers * (pushed + pulled) / servers / rate


def rows(
    shapes: Sequence[Sequence[int]],
    link: str,
    compressions: Sequence[dict[str, Any] | None],
    *,
    workers: int = 2,
    servers: int = 1,
    batches: int = 5,
    congestion: str | None = None,
) -> Iterator[Row]:
    """Yield a row for each compression with the median of its steps; an additional first step, which warms up, is left
    out.

    Args:
        shapes: shapes of the keys, float32.
        link: rate of every cable, as ``1gbit``.
        compressions: arguments of ``set_gradient_compression``; None: no compression.
        workers: number of workers.
        servers: number of servers.
        batches: steps.
        congestion: TCP's control; None: as on this machine.

    Raises:
        ConfigError: no such rate; not root, or no iproute2.
        NetlabError: the kernel refused a part.
    """
    with Netlab(servers + workers, link, congestion=congestion) as lab:
        assert lab.link.rate is not None
        for compression in compressions:
            with StoreGroup(workers, servers, ["--insecure"], lab) as group:
                group.ask("open", kind="dist_sync", compression=compression)
                group.ask("prepare", shapes=[list(shape) for shape in shapes], devices=1)
                pushed, pulled = pushed_bytes(shapes, compression), 4 * sum(map(math.prod, shapes))
                least = least_seconds(pushed, pulled, workers, servers, lab.link.rate)
                samples, before = [], lab.traffic()[0]
                for number in range(batches + 1):
                    if number == 1:
                        before = lab.traffic()[0]
                    samples.append(max(each["seconds"] for each in group.ask("batch")))
                after, taken = lab.traffic()[0], summarise(samples[1:])
            yield {
                "link": link,
                "compression": (compression or {"type": "none"})["type"],
                "seconds": taken.median,
                "seconds_low": taken.low,
                "seconds_high": taken.high,
                "least_seconds": least,
                "over": taken.median / least - 1,
                "repeats": taken.count,
                "pushed": pushed,
                "pulled": pulled,
                "received": (after.received - before.received) / batches,
                "sent": (after.sent - before.sent) / batches,
                "workers": workers,
                "servers": servers,
                "keys": len(shapes),
                "congestion": lab.congestion,
                "samples": samples[1:],
            } | environment()


def pushed_bytes(shapes: Sequence[Sequence[int]], compression: dict[str, Any] | None) -> int:
    """The bytes of a worker's payloads."""
    code = None if compression is None else parse(compression).push
    return sum(4 * math.prod(shape) if code is None else code.layout(tuple(shape)).nbytes for shape in shapes)
