"""One worker of MXNet's distributed store: a script for the peer's own interpreter, which does not know gradwire."""

import hashlib
import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np


class MXNetWorker:
    """MXNet's counterpart of ``bench/_store_worker.py``, which takes the same requests."""

    def __init__(self) -> None:
        import mxnet  # type: ignore[import-not-found]  # here, so that this file can be read where MXNet is not

        self._mx: Any = mxnet
        self._store: Any = None
        self._keys: dict[str, list[int]] = {}
        self._gradients: dict[str, list[Any]] = {}
        self._values: dict[str, list[Any]] = {}

    def open(self, kind: str, compression: dict[str, Any] | None) -> int:
        """Join the group, and return this worker's rank."""
        self._store = self._mx.kv.create(kind)
        if compression is not None:
            self._store.set_gradient_compression(compression)
        return int(self._store.rank)

    def add(self, workload: str, count: int, size: int) -> None:
        """Add ``count`` keys of ``size`` zeros each."""
        zeros, first = self._mx.nd.zeros, sum(map(len, self._keys.values()))
        self._keys[workload] = list(range(first, first + count))
        self._values[workload] = [zeros(size) for _ in range(count)]
        self._store.init(self._keys[workload], [zeros(size) for _ in range(count)])
        self._mx.nd.waitall()

    def draw(self, workload: str, seed: int) -> None:
        """Draw new gradients."""
        drawn = np.random.RandomState(seed + self._store.rank)
        sizes = [value.size for value in self._values[workload]]
        self._gradients[workload] = [self._mx.nd.array(drawn.standard_normal(n).astype(np.float32)) for n in sizes]
        self._mx.nd.waitall()

    def run(self, workload: str, op: str, steps: int) -> float:
        """Make a step, and return its seconds from a common start of all workers until all of it is done."""
        keys, gradients, values = (each[workload] for each in (self._keys, self._gradients, self._values))
        self._store._barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self._store.push(keys, gradients)
            if op == "push+pull":
                self._store.pull(keys, out=values)
            self._mx.nd.waitall()
        return (time.perf_counter() - start) / steps

    def digest(self, workload: str) -> str:
        """A digest of the bits of all values that were pulled last."""
        digest = hashlib.blake2b()
        for value in self._values[workload]:
            digest.update(value.asnumpy().tobytes())
        return digest.hexdigest()


if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).with_name("answers.py")))["serve"](MXNetWorker())
