"""Something asked of a server."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradwire.kvstore.protocol import CHUNK, chunk_count, pack

__all__ = ["Request"]


@dataclass(eq=False)
class Request:
    """Something asked of one server.

    Args:
        op: as in the protocol.
        fields: of the header, without "seq" and the place of a piece.
        data: uint8 that follows, in pieces; None: nothing.
        out: uint8 that the answer fills; None: the answer's bytes are handed over as they are.
        priority: larger ones go first.
        log: a push: kept and sent again until its step is on the server's disk.
        declare: sent again to a server that was restarted.
    """

    op: str
    fields: dict[str, Any]
    data: Tensor | None = None
    out: Tensor | None = None
    priority: int = 0
    log: tuple[Any, int] | None = None
    declare: bool = False
    future: Future[int] = field(default_factory=Future)
    seq: int = 0
    answer: bytearray | None = None
    missing: set[int] | None = None

    @property
    def rank(self) -> tuple[int, bool]:
        """The least goes first: what is more urgent, then what is short."""
        return -self.priority, self.pieces() > 1

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
