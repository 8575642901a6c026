"""Bandwidth of a store with a network's keys: MXNet's tools/bandwidth/measure.py for every type of store.

A batch pushes every key from every device and pulls it to every device. With n devices in all that took s seconds for
b bytes of parameters, the bandwidth of a device is 2 b (n - 1) / n / s: what a ring would move through each of them,
MXNet's formula. The error is the sum of |value - sum of the gradients| over the sum of |sum of the gradients|: of this
batch, and of the mean of all batches so far, which error feedback brings down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from gradwire.errors import ConfigError
from gradwire_lab.bench._store_worker import StoreWorker
from gradwire_lab.bench.machine import environment
from gradwire_lab.bench.storegroup import StoreGroup

__all__ = ["device_bandwidth", "rows"]

Row = dict[str, Any]


def device_bandwidth(nbytes: float, devices: int, seconds: float) -> float:
    """Bytes a second of each device, as measure.py computes them.

    >>> device_bandwidth(1e9, 2, 0.5)
    2000000000.0
    """
    return 2 * nbytes * (devices - 1) / devices / seconds


def rows(
    shapes: Sequence[Sequence[int]],
    kind: str = "device",
    compression: dict[str, Any] | None = None,
    *,
    devices: int = 2,
    workers: int = 1,
    servers: int = 1,
    batches: int = 5,
) -> Iterator[Row]:
    """Yield a row for each batch; an additional first batch, which warms up, is left out.

    Args:
        shapes: shapes of the keys.
        kind: type of the store. A "dist" one gets its servers and workers here, as processes of this machine.
        compression: argument of ``set_gradient_compression``; None: no compression.
        devices: senders of each worker.
        workers: processes; more than 1 only of a "dist" store.
        servers: number of servers of a "dist" store.
        batches: number of batches.

    Raises:
        ConfigError: several workers of a store that is in one process.
    """
    distributed = "dist" in kind.lower()
    if workers > 1 and not distributed:
        raise ConfigError(f"a store of type {kind!r} is in one process: --workers must be 1, got {workers}")
    with ExitStack() as stack:
        group = stack.enter_context(StoreGroup(workers, servers)) if distributed else None
        alone = StoreWorker()

        def ask(request: str, **arguments: Any) -> list[Any]:
            return [getattr(alone, request)(**arguments)] if group is None else group.ask(request, **arguments)

        ask("open", kind=kind, compression=compression)
        ask("prepare", shapes=[list(shape) for shape in shapes], devices=devices)
        nbytes, total = 4 * sum(map(math.prod, shapes)), devices * workers
        for number in range(batches + 1):
            told = ask("batch")
            if number:
                seconds = max(each["seconds"] for each in told)
                yield {
                    "batch": number,
                    "seconds": seconds,
                    "bandwidth": device_bandwidth(nbytes, total, seconds),
                    "error": max(each["error"] for each in told),
                    "mean_error": max(each["mean_error"] for each in told),
                    "kind": kind,
                    "compression": compression,
                    "keys": len(shapes),
                    "bytes": nbytes,
                    "devices": devices,
                    "workers": workers,
                    "servers": servers if distributed else 0,
                } | environment()
