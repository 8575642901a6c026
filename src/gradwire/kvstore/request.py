"""Something asked of a server."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from torch import Tensor

from gradwire.kvstore.protocol import CHUNK, chunk_count, pack

__all__ = ["Request", "Spread"]

Block: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class Spread(Protocol):
    """Tensors that one answer fills."""

    nbytes: int

    def write(self, at: int, piece: Block) -> None:
        """Take bytes of the answer, from byte ``at`` of it on."""


@dataclass(eq=False)
class Request:
    """Something asked of one server.

    Args:
        op: as in the protocol.
        fields: of the header, without "seq" and the place of a piece.
        data: uint8 that follows, in pieces; None: nothing.
        out: uint8, or several tensors, that the answer fills; None: its bytes are handed over as they are.
        priority: larger ones go first.
        log: a push: kept and sent again until its step is on the server's disk.
        declare: sent again to a server that was restarted.
    """

    op: str
    fields: dict[str, Any]
    data: Tensor | None = None
    out: Tensor | Spread | None = None
    priority: int = 0
    log: tuple[Any, int] | None = None
    declare: bool = False
    future: Future[int] = field(default_factory=Future)
    seq: int = 0
    answer: bytearray | None = None
    missing: set[int] | None = None

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The least goes first: what others may name, then what is more urgent, then what is short."""
        return not self.declare, -self.priority, self.pieces() > 1

    @property
    def topic(self) -> Any:
        """Under which pushes are kept."""
        return ("joint", self.fields["joint"]) if "joint" in self.fields else self.fields.get("key")

    def make_room(self, nbytes: int) -> bool:
        """Before the first piece of an answer; False: it has another size."""
        if self.out is None:
            self.answer = bytearray(nbytes)
            return True
        return nbytes == (self.out.numel() if isinstance(self.out, Tensor) else self.out.nbytes)

    def take(self, at: int, piece: Block) -> None:
        """Take bytes of the answer, from byte ``at`` of it on."""
        if self.out is not None and not isinstance(self.out, Tensor):
            self.out.write(at, piece)
            return
        into = np.frombuffer(self.answer or b"", np.uint8) if self.out is None else self.out.numpy()
        np.copyto(into[at : at + len(piece)], piece)

    def logged(self) -> list[tuple[Any, int]]:
        """The keys and steps of the pushes in it."""
        if self.op == "pushes":
            return [(key, step) for key, step, _ in self.fields["items"]]
        return [] if self.log is None else [self.log]

    def pieces(self) -> int:
        return 1 if self.data is None else chunk_count(self.data.numel())

    def frames(self, piece: int) -> list[Any]:
        if self.data is None:
            return [pack(self.op, seq=self.seq, **self.fields)]
        header = pack(self.op, seq=self.seq, chunk=piece, chunks=self.pieces(), **self.fields)
        return [header, self.data.numpy().data[piece * CHUNK : (piece + 1) * CHUNK]]
