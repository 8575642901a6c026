"""The other side of ``mxnet.py``: a script for the peer's own interpreter, which knows MXNet and not gradwire."""

import runpy
import time
from pathlib import Path
from typing import Any

import numpy as np

_KEY = 0


class Stores:
    """MXNet's stores of type "device" by name, and the gradients to push, each on a CPU context of its own."""

    def __init__(self) -> None:
        import mxnet  # type: ignore[import-not-found]  # here, so that this file can be read where MXNet is not

        self._mx: Any = mxnet
        self._stores: dict[str, Any] = {}
        self._gradients: list[Any] = []

    def version(self) -> str:
        return str(self._mx.__version__)

    def open_store(self, name: str, size: int, threshold: float | None) -> float | None:
        """Open a new store with one key of ``size`` zeros; without a threshold it does not compress.

        Returns:
            The threshold as MXNet understood it: it reads decimal text with errors in the last bit.
        """
        self._stores[name] = self._store(size, threshold)
        if threshold is None:
            return None
        probe, out = self._store(1, threshold), self._mx.nd.empty(1)
        probe.push(_KEY, [self._mx.nd.full(1, np.finfo(np.float32).max)])
        probe.pull(_KEY, out)
        return float(out.asscalar())

    def load(self, files: list[str]) -> None:
        """Take the gradients from .npy files."""
        array, cpu = self._mx.nd.array, self._mx.cpu
        self._gradients = [array(np.load(file), ctx=cpu(i), dtype="float32") for i, file in enumerate(files)]
        self._mx.nd.waitall()

    def push(self, name: str) -> float:
        """Push the gradients, wait until they are stored, and return the seconds."""
        start = time.perf_counter()
        self._stores[name].push(_KEY, self._gradients)
        self._mx.nd.waitall()
        return time.perf_counter() - start

    def pull(self, name: str, file: str) -> None:
        """Write the stored value to a .npy file."""
        out = self._mx.nd.empty(self._gradients[0].shape)
        self._stores[name].pull(_KEY, out)
        np.save(file, out.asnumpy())

    def _store(self, size: int, threshold: float | None) -> Any:
        store = self._mx.kv.create("device")
        if threshold is not None:
            store.set_gradient_compression({"type": "2bit", "threshold": threshold})
        store.init(_KEY, self._mx.nd.zeros(size))
        return store


if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[1] / "answers.py"))["serve"](Stores())
