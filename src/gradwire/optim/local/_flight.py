"""Exchange that runs in the background while its rank trains on.

Invariants:
    * Until ``land`` has returned, the thread of a worker uses the exchange and ``mean``; nobody else may touch either.
    * Several that share a worker are exchanged in the order in which they began.
    * ``own`` is what this rank handed in, which until then is in its own parameters alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.optim._flat import FlatParameters, any_nonfinite
from gradwire.transport.worker import Worker

__all__ = ["Flight"]


class Flight:
    """An exchange in the background: the change that a rank handed in, and the mean that comes back.

    Args:
        params: the parameters, whose device is that of the exchange.
        worker: worker whose thread exchanges; None: one of its own.
    """

    def __init__(self, params: Sequence[Tensor], worker: Worker | None = None) -> None:
        self.own, self.mean = FlatParameters(params), FlatParameters(params)
        self.open = False
        """True: a pseudo-gradient was handed in whose mean is not applied yet."""
        self.spoilt = False
        """True: this rank's own pseudo-gradient was not finite."""
        self._finite = True
        self._worker = Worker() if worker is None else worker
        self._future: Future[Tensor] | None = None
        device = self.mean.data.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def begin(self, exchanged: Callable[[Tensor], bool], delta: Tensor, spoilt: bool = False) -> None:
        """Hand in a change. One that is not finite spoils the round for all, and this rank takes no part in it.

        Args:
            exchanged: replaces a flat tensor by its mean over the ranks and says whether that is finite.
            spoilt: the change of another shard is not finite.
        """
        self.mean.data.copy_(delta)
        self.own.data.copy_(delta)
        self.spoilt = spoilt or any_nonfinite([delta])
        if self.spoilt:
            self.own.data.zero_()
        # The copy is made on the caller's stream, and the thread uses another one.
        ready = None if self._stream is None else torch.cuda.current_stream(delta.device).record_event()
        self._future = self._worker.submit(partial(_run, exchanged, self.mean.data, self._stream, ready))
        self.open = True

    def wait(self) -> None:
        """Wait until the exchange is over.

        Raises:
            GroupError: the exchange failed.
        """
        if self._future is not None:
            self._finite = bool(self._worker.result(self._future))
            self._future = None

    def land(self) -> Tensor | None:
        """Return the mean, which may be overwritten, or None if it is not finite; nothing is under way any more."""
        # The thread writes to ``mean`` until it has ended.
        self.wait()
        self.open = False
        self.own.data.zero_()
        return self.mean.data if self._finite else None

    def state_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the state when the exchange is over and not applied; empty if nothing is under way."""
        # Only when the thread has ended is it known whether the mean is finite.
        self.wait()
        if not self.open:
            return {}
        own, mean = (dict(zip(names, flat.views, strict=True)) for flat in (self.own, self.mean))
        return {"own": own, "mean": mean, "finite": self._finite, "spoilt": self.spoilt}

    def load(self, state: Mapping[str, Any], names: Sequence[str]) -> None:
        """Continue from a ``state_dict``."""
        # The thread would write into what is loaded.
        self.wait()
        self.open = bool(state)
        self._finite, self.spoilt = state.get("finite", True), state.get("spoilt", False)
        for key, flat in (("own", self.own), ("mean", self.mean)):
            flat.gather(state[key][name] if state else None for name in names)


@torch.no_grad()
def _run(
    exchanged: Callable[[Tensor], bool], flat: Tensor, stream: torch.cuda.Stream | None, ready: torch.cuda.Event | None
) -> Tensor:
    """Run the exchange in its thread: on CUDA it waits until the change is written, and ends when
    its stream is empty.
    """
    if stream is None or ready is None:
        return torch.tensor(exchanged(flat), device="cpu")
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        finite = exchanged(flat)
        # The job's end is what ``wait`` waits for, and the host reads the mean after it.
        stream.synchronize()
    return torch.tensor(finite, device="cpu")
