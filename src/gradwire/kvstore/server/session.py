"""One worker as its server knows it, and the messages of it that are not complete yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradwire.errors import ConfigError, WireError
from gradwire.kvstore.protocol.buffers import lease
from gradwire.kvstore.protocol.compression import OFF, Compression
from gradwire.kvstore.protocol.keys import StoreKey
from gradwire.kvstore.protocol.messages import CHUNK, MAX_OPEN, chunk_count
from gradwire.kvstore.server.joint import Joint

__all__ = ["MAX_CONFIGS", "WorkerSession"]


MAX_CONFIGS = 512
"""Compressions that pushes may name: a threshold may change in every step."""


@dataclass
class Assembly:
    """A message in pieces."""

    data: Tensor
    missing: set[int]


@dataclass
class WorkerSession:
    """One worker, as long as it is the same process.

    Args:
        peer: its name in the transport.
        rank: among the workers.
        token: that it chose; another process has another one.
        seen: when something last came from it, in seconds.
        configs: its compressions, by number; 0 is none.
        barriers: that were passed before it came: its own first one is the one after them.
        joined: its rank had another process before, so its settings are numbered anew.
        reachable: nothing that was sent to it has failed since it was heard of.
        given: number of the replica of a key that the newest compressed answer led to.
        joints: lists of keys that it names together, by its numbers.
    """

    peer: bytes
    rank: int
    token: bytes
    seen: float
    configs: dict[int, Compression] = field(default_factory=lambda: {0: OFF})
    barriers: int = 0
    joined: bool = False
    reachable: bool = True
    given: dict[StoreKey, int] = field(default_factory=dict)
    joints: dict[int, Joint] = field(default_factory=dict)
    open: dict[int, Assembly] = field(default_factory=dict)

    def compression(self, number: int) -> Compression:
        """Find a compression by its number.

        Raises:
            WireError: there is none.
        """
        if number not in self.configs:
            raise WireError(f"a push names compression {number}, which was never sent")
        return self.configs[number]

    def joint(self, number: int) -> Joint:
        """Find a list of keys by its number.

        Raises:
            WireError: there is none.
        """
        if number not in self.joints:
            raise WireError(f"a request names list {number} of keys, which was never sent")
        return self.joints[number]

    def declare(self, number: int, compression: Compression) -> None:
        """Know a compression by its number, and forget the oldest of too many."""
        self.configs[number] = compression
        if len(self.configs) > MAX_CONFIGS:
            del self.configs[min(n for n in self.configs if n)]

    def take(self, seq: int, chunk: int, chunks: int, rest: list[memoryview], sizes: range) -> Tensor | None:
        """Take a piece of a message; the whole of it, uint8, when its last piece is here.

        Args:
            seq: of the message.
            chunk: place of the piece.
            chunks: pieces of the message.
            rest: the frame.
            sizes: bytes that the message may have.

        Raises:
            WireError: pieces that do not make a message of such a size.
        """
        nbytes = rest[0].nbytes if rest else 0
        if chunk >= chunks or nbytes > CHUNK or (chunk + 1 < chunks and nbytes != CHUNK):
            raise WireError(f"piece {chunk} of {chunks} has {nbytes} bytes")
        most = sizes.stop - 1
        if not chunk_count(sizes.start) <= chunks <= chunk_count(most):
            raise WireError(f"a message of {sizes.start} to {most} bytes does not have {chunks} pieces")
        assembly = self._assembly(seq, chunks, min(chunks * CHUNK, most))
        at = chunk * CHUNK
        if at + nbytes > assembly.data.numel():
            raise WireError(f"piece {chunk} of {chunks} ends at byte {at + nbytes}, the message at {most}")
        if nbytes:
            np.copyto(assembly.data.numpy()[at : at + nbytes], np.frombuffer(rest[0], np.uint8))
        if chunk + 1 == chunks:
            assembly.data = assembly.data[: at + nbytes]
        assembly.missing.discard(chunk)
        if assembly.missing:
            return None
        del self.open[seq]
        if assembly.data.numel() not in sizes:
            raise WireError(f"a message has {assembly.data.numel()} bytes, not {sizes.start} to {most}")
        return assembly.data

    def _assembly(self, seq: int, chunks: int, nbytes: int) -> Assembly:
        if seq not in self.open:
            if len(self.open) >= MAX_OPEN:
                raise WireError(f"a session has at most {MAX_OPEN} messages in pieces at a time")
            try:
                data = lease((nbytes,), torch.uint8)
            except (RuntimeError, MemoryError):
                raise ConfigError(f"this server has no room for a message of {nbytes} bytes") from None
            self.open[seq] = Assembly(data, set(range(chunks)))
        return self.open[seq]
