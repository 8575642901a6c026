"""Shards of a bucket: its pieces, cut into parts of nearly equal size, one for each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gradwire.group.part import Piece
from gradwire.kernels.stored import part_of

__all__ = ["cut"]


def cut(pieces: Sequence[Piece], world: int) -> list[list[Piece]]:
    """Split whole units into ``world`` shards of nearly equal element counts, as far as methods and memories allow."""
    total = sum(piece.numel for piece in pieces)
    shards: list[list[Piece]] = [[] for _ in range(world)]
    begin = 0
    for piece in pieces:
        edges = [edge(piece, total * j // world - begin) for j in range(world + 1)]
        for shard, lo, hi in zip(shards, edges, edges[1:], strict=False):
            if hi > lo:
                shard.append(slice_of(piece, lo, hi))
        begin += piece.numel
    return shards


def edge(piece: Piece, wanted: int) -> int:
    """The offset nearest to ``wanted`` at which this piece may be cut; its ends are always allowed."""
    if wanted <= 0 or wanted >= piece.numel:
        return max(0, min(wanted, piece.numel))
    # A piece that cannot be cut goes to one shard as a whole.
    step = math.lcm(piece.unit.compressor.alignment, piece.memory.form.grain) or piece.numel
    return min(piece.numel, (wanted + step // 2) // step * step)


def slice_of(piece: Piece, lo: int, hi: int) -> Piece:
    if (lo, hi) == (0, piece.numel):
        return piece
    kept = {name: part_of(tensor, lo, hi) for name, tensor in piece.kept.items()}
    return replace(piece, shape=(hi - lo,), lo=piece.lo + lo, start=piece.start + lo, kept=kept)
