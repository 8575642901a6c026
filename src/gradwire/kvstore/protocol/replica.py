"""Compressed answers: the workers' copies of a value, and their distance from the value itself.

With V_t the value after step t, R_t what the workers hold then, Q the compressor and D its decoder:

    a value that is updated (an optimizer has it): the change since the last step travels
        p_t = Q(V_t - R_{t-1});      R_t = R_{t-1} + D(p_t)
    a value that each step replaces (the sum of what was pushed): it travels itself, with what was left of the last
        p_t = Q(V_t + E_{t-1});      R_t = D(p_t);      E_t = V_t + E_{t-1} - R_t

Invariants:
    * What one answer did not deliver, V_t - R_t or E_t, is in the next.
    * Store and worker make R_t by the same additions in the same order, so all hold the same bits.
    * R_t is a function of the pushes alone, whenever the workers pull. A store that continues from a snapshot makes the
      same R_t again.
    * A worker that does not have R_{t-1} (its first pull, a step that it did not pull, a store that was restarted) gets
      all of R_t.
    * A value that is not finite travels uncompressed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.buffers import as_bytes
from gradwire.kvstore.protocol.compression import Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.payloads import received, sent, sizes, views
from gradwire.kvstore.protocol.sender import Sender, refuse_nonfinite
from gradwire.memory.none import NoMemory
from gradwire.memory.residual import Residual

__all__ = ["Held", "Replica", "follows", "is_payload", "whole"]

PREFIX = struct.Struct("<qq")
"""Beginning of an answer: its form, and the number of the replica that it leads to."""

WHOLE, CHANGE, VALUE, SAME = range(4)
"""All elements as they are; a payload to add to the replica before; a payload to decode alone; nothing new."""


def follows(compressor: Compressor | None, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether answers of a value are compressed: it must be floating-point, and the payload smaller."""
    return compressor is not None and dtype.is_floating_point and capabilities.pays_for(compressor, tuple(shape))


class Replica:
    """The store's copy of what the workers that pull a value hold of it.

    Args:
        key: key of the value.
        value: value that the workers hold now.
        number: number of this state; each later one has the next.
        rank: rank of the worker, where each has a replica of its own.
    """

    def __init__(self, key: StoreKey, value: Tensor, number: int = 0, rank: int = 0) -> None:
        self.held, self.number, self.replaced = wide(value).clone(), number, False
        self.sender = Sender(key, value.shape, seed=0, rank=rank, phase=1, device=value.device)
        self.compressor: Compressor | None = None
        self._payload: Tensor | None = None
        self._answers: dict[int, Tensor] = {}

    def follow(self, value: Tensor, compressor: Compressor, *, replaced: bool) -> None:
        """Move towards a value by as much as one payload can carry.

        Args:
            replaced: true: the step replaced the value; false: it updated it.
        """
        self._use(compressor, replaced)
        self._next()
        target = value if replaced else value - self.held
        try:
            refuse_nonfinite(self.sender.key, target)
            payload, _ = self.sender.encode(target)
        except ConfigError:
            # The value is not finite, alone or with the residual, which the sender kept.
            self.held.copy_(value)
            return
        self._payload = sent(compressor, value.shape, payload)
        add_payload(compressor, self._payload, self.held.zero_() if replaced else self.held)

    def jump(self, value: Tensor) -> None:
        """Set the replica to the value itself."""
        self._next()
        self.held.copy_(value)

    def answer(self, have: int, compressor: Compressor | None) -> Tensor:
        """The bytes that bring a worker to this replica; made once for all workers that need the same.

        Args:
            have: number of the replica that it holds, -1 for none.
            compressor: compressor whose payloads the worker can read.
        """
        form = SAME if have == self.number else WHOLE
        readable = self._payload is not None and compressor == self.compressor
        if form == WHOLE and readable and (self.replaced or have == self.number - 1):
            form = VALUE if self.replaced else CHANGE
        if form not in self._answers:
            data = {WHOLE: self.held, SAME: self.held.view(-1)[:0]}.get(form, self._payload)
            assert data is not None
            self._answers[form] = framed(form, self.number, data)
        return self._answers[form]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors for a snapshot."""
        sender = self.sender
        kept = {f"kept/{name}": tensor for name, tensor in sender.kept.items()}
        return {"held": self.held, **kept, **{f"state/{name}": tensor for name, tensor in sender.state.items()}}

    def to_config(self) -> dict[str, Any]:
        """Return the other facts for a snapshot, as plain values."""
        compressor = self.compressor and self.compressor.to_config()
        return {
            "number": self.number,
            "replaced": self.replaced,
            "steps": self.sender.steps,
            "compressor": compressor,
        }

    def restore(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        """Continue from a snapshot."""
        if config["compressor"] is not None:
            self._use(registry.from_config("compressors", config["compressor"]), bool(config["replaced"]))
        self.held = tensors["held"]
        self.number, self.sender.steps = int(config["number"]), int(config["steps"])
        for label, mine in (("kept", self.sender.kept), ("state", self.sender.state)):
            for name, tensor in mine.items():
                tensor.copy_(tensors[f"{label}/{name}"])

    def _use(self, compressor: Compressor, replaced: bool) -> None:
        self.compressor, self.replaced = compressor, replaced
        # An updated value has its residual in the difference; a replaced one needs it kept.
        self.sender.use(Compression(compressor, Residual() if replaced else NoMemory()))

    def _next(self) -> None:
        # Answers that were made for the state before lead elsewhere.
        self.number, self._payload, self._answers = self.number + 1, None, {}


class Held:
    """The value as one worker holds it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), torch.promote_types(dtype, torch.float32)
        self.tensor: Tensor | None = None
        self.number = -1

    def take(self, answer: bytearray, compressor: Compressor | None) -> Tensor:
        """Apply an answer, for which the worker named a compressor, and return the new value.

        Raises:
            WireError: bytes that are no answer to this worker.
        """
        if len(answer) < PREFIX.size:
            raise WireError(f"an answer has at least {PREFIX.size} bytes, not {len(answer)}")
        form, number = PREFIX.unpack_from(answer)
        data = torch.frombuffer(answer, dtype=torch.uint8)[PREFIX.size :]
        if form == WHOLE:
            self.tensor = self._whole(data)
        elif form in (CHANGE, VALUE) and compressor is not None:
            self._add(form, data, compressor)
        elif form != SAME or number != self.number:
            raise WireError(f"an answer of form {form} does not lead from replica {self.number} to {number}")
        self.number = number
        assert self.tensor is not None
        return self.tensor

    def _whole(self, data: Tensor) -> Tensor:
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        if data.numel() != nbytes:
            raise WireError(f"a replica has {nbytes} bytes, not {data.numel()}")
        return data.view(self.dtype).view(self.shape)

    def _add(self, form: int, data: Tensor, compressor: Compressor) -> None:
        allowed = sizes(compressor, self.shape)
        # Before anything is decoded: the bytes come from another process.
        if data.numel() not in allowed or (self.tensor is None and form == CHANGE):
            raise WireError(
                f"a payload of {data.numel()} bytes came, not of {allowed.start} to {allowed.stop - 1}, or it is to "
                "change a replica that is not here"
            )
        if self.tensor is None or form == VALUE:
            self.tensor = torch.zeros(self.shape, dtype=self.dtype, device="cpu")
        add_payload(compressor, data, self.tensor)


def whole(value: Tensor, number: int) -> Tensor:
    """Make an answer with the value itself, for a value without a replica."""
    return framed(WHOLE, number, wide(value))


def is_payload(answer: Tensor) -> bool:
    """Return whether an answer is compressed."""
    form, _ = PREFIX.unpack_from(answer[: PREFIX.size].numpy().data)
    return form in (CHANGE, VALUE)


def framed(form: int, number: int, data: Tensor) -> Tensor:
    head = torch.frombuffer(bytearray(PREFIX.pack(form, number)), dtype=torch.uint8)
    return torch.cat([head, as_bytes(data.cpu())])


def wide(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


def add_payload(compressor: Compressor, payload: Tensor, into: Tensor) -> None:
    """Add a payload to a value, by the same operations on both sides."""
    decoded = into if into.dtype == torch.float32 else torch.zeros(into.shape, dtype=torch.float32, device=into.device)
    compressor.add_decoded(views(compressor, into.shape, received(compressor, into.shape, payload)), decoded)
    if decoded is not into:
        into.add_(decoded)
