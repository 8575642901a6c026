"""One worker of a store that is measured: it does the work that standard input asks for, and times it."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire import kvstore
from gradwire.kvstore.protocol.store import KVStore
from gradwire_lab.bench.answers import serve


class StoreWorker:
    """A worker with numbered keys; each workload has a range of them."""

    def __init__(self) -> None:
        self._store: KVStore | None = None
        self._keys: dict[str, list[int]] = {}
        self._gradients: dict[str, list[Tensor]] = {}
        self._values: dict[str, list[Tensor]] = {}
        self._batches: Batches | None = None

    @property
    def store(self) -> KVStore:
        assert self._store is not None
        return self._store

    def open(self, kind: str, compression: dict[str, Any] | None) -> int:
        """Join the group, and return this worker's rank."""
        self._store = kvstore.create(kind)
        if compression is not None:
            self._store.set_gradient_compression(compression)
        return self._store.rank

    def add(self, workload: str, count: int, size: int) -> None:
        """Add ``count`` keys of ``size`` zeros each."""
        first = sum(map(len, self._keys.values()))
        self._keys[workload] = list(range(first, first + count))
        self._values[workload] = [torch.zeros(size) for _ in range(count)]
        self.store.init(self._keys[workload], self._values[workload])

    def draw(self, workload: str, seed: int) -> None:
        """Draw new gradients."""
        drawn = np.random.RandomState(seed + self.store.rank)
        sizes = [value.numel() for value in self._values[workload]]
        self._gradients[workload] = [torch.from_numpy(drawn.standard_normal(n).astype(np.float32)) for n in sizes]

    def run(self, workload: str, op: str, steps: int) -> float:
        """Make a step, and return its seconds from a common start of all workers until all of it is done."""
        keys, gradients, values = (each[workload] for each in (self._keys, self._gradients, self._values))
        store = self.store
        store.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            store.push(keys, gradients)
            if op == "push+pull":
                store.pull(keys, values)
            else:
                # Only after it have the pushes of all workers been summed.
                store.barrier()
        return (time.perf_counter() - start) / steps

    def digest(self, workload: str) -> str:
        """A digest of the bits of all values that were pulled last."""
        digest = hashlib.blake2b()
        for value in self._values[workload]:
            digest.update(value.numpy().data)
        return digest.hexdigest()

    def prepare(self, shapes: list[list[int]], devices: int) -> None:
        """Prepare keys of these shapes for ``batch``, pushed by ``devices`` senders of each worker."""
        self._batches = Batches(self.store, [tuple(shape) for shape in shapes], devices)

    def batch(self) -> dict[str, float]:
        """Push and pull every key; return the seconds, and the distance of the values from the sum of all pushes."""
        assert self._batches is not None
        return self._batches.run()


class Batches:
    """The measurement of MXNet's tools/bandwidth/measure.py, made with a store.

    Args:
        store: store to measure.
        shapes: shapes of the keys.
        devices: senders of each worker.
    """

    def __init__(self, store: KVStore, shapes: list[tuple[int, ...]], devices: int) -> None:
        self.store, self.devices = store, devices
        self.keys = [f"measured{i}" for i in range(len(shapes))]
        store.init(self.keys, [torch.zeros(shape) for shape in shapes])
        senders = range(store.num_workers * devices)
        drawn = [[uniform(shape, 1000 * key + sender) for sender in senders] for key, shape in enumerate(shapes)]
        first = store.rank * devices
        self.gradients = [each[first : first + devices] for each in drawn]
        self.sums = [torch.stack(each).sum(0) for each in drawn]
        self.values = [[torch.zeros(shape) for _ in range(devices)] for shape in shapes]
        self.means = [torch.zeros(shape) for shape in shapes]
        self.count = 0

    def run(self) -> dict[str, float]:
        self.store.barrier()
        start = time.perf_counter()
        for i, (key, gradients) in enumerate(zip(self.keys, self.gradients, strict=True)):
            self.store.push(key, gradients, -i)
        self.store.pull(self.keys, self.values)
        seconds = time.perf_counter() - start
        self.count += 1
        for mean, value in zip(self.means, self.values, strict=True):
            mean.lerp_(value[0], 1 / self.count)
        error = max(distance([each[i] for each in self.values], self.sums) for i in range(self.devices))
        return {"seconds": seconds, "error": error, "mean_error": distance(self.means, self.sums)}


def uniform(shape: tuple[int, ...], seed: int) -> Tensor:
    """Random numbers in [-1, 1), which depend on the seed alone."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1)


def distance(values: list[Tensor], sums: list[Tensor]) -> float:
    """The sum of |value - sum| over the sum of |sum|, taken over all keys."""
    wrong = sum(float((value - right).abs().sum()) for value, right in zip(values, sums, strict=True))
    return wrong / sum(float(right.abs().sum()) for right in sums)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(StoreWorker())
