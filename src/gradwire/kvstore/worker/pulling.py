"""Requests of one pull, and the values that their answers make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from gradwire.compressors.base import Compressor
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.keys import KeyPart
from gradwire.kvstore.protocol.replica import Held, follows
from gradwire.kvstore.protocol.small_keys import UnitBatches, offsets
from gradwire.kvstore.worker.connection import Request, ScatterSink
from gradwire.kvstore.worker.worker_key import WorkerKey, WorkerUnit, inside

__all__ = ["Pulling", "row_requests"]

Requests: TypeAlias = list[tuple[int, Request]]
"""Requests, each with the index of its server."""


class Pulling:
    """The requests of one pull.

    Args:
        compressor: method of compressed answers; None: values come as they are.
        config: number under which the servers know the compression.
    """

    def __init__(self, compressor: Compressor | None, config: int, priority: int) -> None:
        self._compressor, self._config, self._priority = compressor, config, priority
        self._answers: list[tuple[Request, Held, Tensor]] = []
        self.requests: Requests = []

    def add(self, units: Sequence[tuple[WorkerUnit, Sequence[Tensor]]]) -> list[Tensor | None]:
        """Make the requests for units.

        Args:
            units: keys and lists of keys, each with the tensors that shall have the values.

        Returns:
            A tensor for each key, which has its value when all requests are answered and ``fill`` was called. None for
            a list, whose values are written to its tensors.
        """
        values = []
        with UnitBatches(self._ask) as batches:
            for unit, outs in units:
                value, sinks = unit.receive(outs)
                values.append(value)
                for place, (server, sink) in enumerate(sinks):
                    if self._follows(unit, place):
                        assert isinstance(unit, WorkerKey)
                        assert value is not None
                        self._follow(unit, unit.parts[place], value)
                    else:
                        batches.add(server, sink.nbytes, (unit, sink), small=unit.small)
        return values

    def fill(self) -> None:
        """Decode the compressed answers into their tensors.

        Raises:
            WireError: the bytes are no answer.
        """
        for request, held, room in self._answers:
            # A compressed answer may be a change of what this worker holds, so it is not written to its place as it
            # arrives.
            room.copy_(held.take(request.answer or bytearray(), self._compressor).view(-1))

    def _ask(self, server: int, batch: list[tuple[WorkerUnit, ScatterSink]]) -> None:
        starts, nbytes = offsets([sink.nbytes for _, sink in batch])
        placed = zip(starts, batch, strict=True)
        blocks = [(start + at, block) for start, (_, sink) in placed for at, block in sink.blocks]
        fields = {"items": [[unit.unit, unit.progress.step] for unit, _ in batch]}
        request = Request("pull", fields, out=ScatterSink(blocks, nbytes), priority=self._priority)
        self.requests.append((server, request))

    def _follows(self, unit: WorkerUnit, place: int) -> bool:
        """Return whether the answer for a part of a key is compressed."""
        if self._compressor is None or not isinstance(unit, WorkerKey):
            return False
        return follows(self._compressor, unit.part_shape(unit.parts[place]), unit.dtype)

    def _follow(self, key: WorkerKey, part: KeyPart, value: Tensor) -> None:
        held = key.held.setdefault(part.start, Held(key.part_shape(part), key.dtype))
        fields = {"key": key.key, "step": key.step, "config": self._config, "have": held.number}
        request = Request("follow", fields, priority=self._priority)
        self._answers.append((request, held, value.view(-1)[part.start : part.stop]))
        self.requests.append((part.server, request))


def row_requests(key: WorkerKey, rows: Tensor, values: Tensor, priority: int) -> Requests:
    """Make a request to each server that has some of the rows.

    Args:
        key: key whose parts have whole rows.
        rows: int64, in increasing order.
        values: memory for the rows, to which the answers are written.
    """
    requests = []
    for part in key.parts:
        lo, hi = inside(rows, key.rows(part))
        if hi > lo:
            asked, block = as_bytes(rows[lo:hi] - key.rows(part).start), as_bytes(values[lo:hi]).numpy()
            fields, sink = {"key": key.key, "step": key.step}, ScatterSink([(0, block)], len(block))
            requests.append((part.server, Request("rows", fields, asked, sink, priority)))
    return requests
