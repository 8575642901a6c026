"""Sending side of a key: the state that a sender keeps, and the payload that it makes of a gradient.

Invariants:
    * The caller's gradient is never written to.
    * A gradient with a NaN or an infinity is refused, and nothing that is kept has changed then.
    * Elements that a row-sparse gradient does not name keep their residual until they are named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, MultiRound
from gradwire.errors import ConfigError
from gradwire.kernels.stored import copy_into, shaped
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import OFF, Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.payloads import layout_of
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, State, tensor_id

__all__ = ["Sender", "encode_all", "flat_gradient", "refuse_nonfinite"]


class Sender:
    """One sender's residual (or whatever its memory keeps) and method state, for one key.

    Args:
        key: key of the store.
        shape: shape of the key's tensor.
        seed: seed of all random streams.
        rank: rank of this sender among the senders of the key.
        phase: phase of the random streams: 0 where gradients are sent, 1 where a store answers.
        device: device of its gradients.
    """

    _compressor: Compressor
    _memory: Memory

    def __init__(
        self,
        key: StoreKey,
        shape: torch.Size,
        *,
        seed: int,
        rank: int,
        phase: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.key, self.shape, self.device = key, shape, torch.device(device)
        self.kept: dict[str, Tensor] = {}
        self.state: State = {}
        self.steps = 0
        self.seed, self.rank = seed, rank
        self._stream = Key(seed=seed, tensor=tensor_id(repr(key)), phase=phase, rank=rank)
        self.compression = OFF
        self._scratch = torch.empty(0, dtype=torch.float32, device=self.device)

    def use(self, compression: Compression) -> None:
        """Use a compression from now on. Kept tensors of the same name stay, so a new threshold loses nothing."""
        if compression == self.compression:
            return
        compressor, memory = compression.push, compression.memory
        assert compressor is not None
        assert memory is not None
        self.compression, self._compressor, self._memory = compression, compressor, memory
        kept = {}
        for buffer in memory.buffers:
            kept[buffer] = shaped(memory.form.zeros(self.shape.numel(), self.device), self.shape)
            if buffer in self.kept:
                copy_into(kept[buffer], self.kept[buffer], self.shape.numel())
        self.kept = kept
        self.state = compressor.init_state(tuple(self.shape), self._stream, self.device)

    def catch_up(self, other: Sender) -> None:
        """Take over the step of another sender of the key, and where ranks average in rounds its state, too.

        Senders draw their common numbers by the step, and a state of rounds is the same on all of them.
        """
        if self.steps == other.steps:
            return
        self.steps = other.steps
        if isinstance(self._compressor, MultiRound):
            for name, tensor in other.state.items():
                self.state[name].copy_(tensor)

    def encode(self, grad: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """Encode a gradient: the payload is uint8, as long as the compressor's layout, in memory of its own.

        Args:
            grad: floating-point, of the key's shape; a row-sparse one gives the payload of its rows alone.

        Returns:
            The payload, and a function that takes the encoding back before the next one comes.

        Raises:
            ConfigError: a value is not finite, and nothing was changed.
        """
        if grad.is_sparse:
            return self._encode_rows(grad)
        return self._encode(self._copy(grad), self.kept, self.state)

    def encode_own(self, x: Tensor) -> Tensor:
        """Encode a float32 gradient that may be overwritten, such as ``room()``."""
        return self._encode(x, self.kept, self.state)[0]

    def room(self) -> Tensor:
        """Return a float32 buffer of the key's shape, for the next gradient to encode."""
        if self._scratch.shape != self.shape:
            self._scratch = torch.empty(self.shape, dtype=torch.float32, device=self.device)
        return self._scratch

    def rounds(self, grad: Tensor) -> Iterator[tuple[tuple[Tensor, ...], int, str]]:
        """Run a method of several rounds: yield its payload, the field to reduce next, and how.

        After the last one the payload decodes to the mean over all senders.

        Raises:
            ConfigError: a value is not finite, and nothing was changed.
        """
        compressor, memory = self._compressor, self._memory
        assert isinstance(compressor, MultiRound)
        x = self._copy(grad)
        # Before the rounds, in the middle of which nothing could be undone.
        refuse_nonfinite(self.key, x)
        memory.compensate(x, self.kept)
        layout = compressor.layout(tuple(self.shape))
        payload = layout.views(torch.zeros(layout.nbytes, dtype=torch.uint8, device=self.device))
        for field, how in compressor.pauses([x], [payload], [self.state], [self._next()]):
            yield payload, field, how
        capabilities.add_own(compressor, payload, x, -1.0)
        memory.update(x, self.kept, torch.zeros(1, dtype=torch.bool, device=self.device))

    def _encode(self, x: Tensor, kept: Mapping[str, Tensor], state: State) -> tuple[Tensor, Callable[[], None]]:
        compressor, memory = self._compressor, self._memory
        layout = layout_of(compressor, tuple(x.shape))
        buffer = self._payload(layout.nbytes)
        status = torch.zeros(1, dtype=torch.int32, device=self.device)
        # A method's state has no inverse operation, as a residual has.
        before = {name: tensor.clone() for name, tensor in state.items()}
        memory.encode(compressor, x, kept, layout.views(buffer), state, self._next(), status)

        def undo() -> None:
            memory.rollback(x, kept)
            for name, tensor in before.items():
                state[name].copy_(tensor)

        # Only the encoding finds values that are not finite, in its one pass over memory; so it is undone, and not
        # avoided.
        if bool(status):
            undo()
            refuse(self.key)
        return buffer, undo

    def _encode_rows(self, grad: Tensor) -> tuple[Tensor, Callable[[], None]]:
        compressor, memory = self._compressor, self._memory
        blocks = memory.form.block > 0
        if self.state or blocks or capabilities.in_rounds(compressor):
            keeps = f"memory {memory.name!r} keeps blocks" if blocks else f"{compressor.name!r} keeps a state"
            raise ConfigError(
                f"{keeps} of the whole tensor, so it cannot compress the row-sparse gradient "
                f"of key {self.key!r}: use a method without one, such as '2bit'"
            )
        rows = grad.indices()[0]
        kept = {name: tensor[rows] for name, tensor in self.kept.items()}
        payload, undo_rows = self._encode(grad.values().float().clone(), kept, {})

        def write() -> None:
            for name, tensor in kept.items():
                self.kept[name][rows] = tensor

        def undo() -> None:
            undo_rows()
            write()

        # Only now: a gradient that is refused must leave them as they were.
        write()
        return payload, undo

    def _copy(self, grad: Tensor) -> Tensor:
        """Copy the gradient to a float32 tensor that memory and compressor may overwrite."""
        return self.room().copy_(grad)

    def _payload(self, nbytes: int) -> Tensor:
        if self.device.type != "cpu":
            return torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        return lease((nbytes,), torch.uint8).zero_()

    def _next(self) -> Key:
        self.steps += 1
        return dataclasses.replace(self._stream, step=self.steps)


def encode_all(senders: Sequence[Sender], grads: Sequence[Tensor]) -> list[Tensor]:
    """Encode a gradient by each sender; if one is refused, nothing that the senders before it keep has changed.

    Raises:
        ConfigError: a value is not finite.
    """
    payloads: list[Tensor] = []
    undos: list[Callable[[], None]] = []
    try:
        for sender, grad in zip(senders, grads, strict=True):
            payload, undo = sender.encode(grad)
            payloads.append(payload)
            undos.append(undo)
    except BaseException:
        # Nobody gets their payloads, so what is in these must come again.
        for undo in undos:
            undo()
        raise
    return payloads


def refuse_nonfinite(key: StoreKey, x: Tensor) -> None:
    """Refuse gradients that cannot be compressed, before any sender of the push has encoded.

    Raises:
        ConfigError: a value is NaN or infinite.
    """
    if x.numel() and not all(math.isfinite(each) for each in torch.aminmax(x)):
        refuse(key)


def refuse(key: StoreKey) -> None:
    raise ConfigError(
        f"the gradient of key {key!r} must be finite to be compressed, got NaN or infinity; nothing of "
        "this key was pushed: leave this step of it out on all workers, or lower the loss scale"
    )


def flat_gradient(grad: Tensor) -> Tensor:
    """Flatten a gradient as the stores take it: dense, or row-sparse with each row once.

    Raises:
        ConfigError: another layout.
    """
    if not grad.is_sparse:
        if grad.layout != torch.strided:
            raise ConfigError(f"a pushed tensor must be dense or row-sparse (COO), got {grad.layout}")
        return grad
    if grad.sparse_dim() != 1:
        raise ConfigError(f"a sparse tensor must have one sparse dimension, its rows, got {grad.sparse_dim()}")
    return grad.coalesce()
