"""Shards, one for each rank: of a bucket, whose pieces are cut into parts of nearly equal size, and of a parameter that
FSDP has divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.engine.part import Piece
from gradwire.kernels.stored import StoredForm, form_of, part_of, read, write
from gradwire.vocabulary import align

__all__ = ["Sharded", "cut"]


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


class Sharded:
    """A parameter as FSDP divides it among ranks.

    Args:
        name: name of the parameter in the model.
        shape: shape of the parameter, or of the part of it that tensor parallelism has left this rank.
        world: number of shards.
        dim: the dimension that is cut: 0, by rows, where the last shards are padded, or one that the number of shards
            divides.
    """

    def __init__(self, name: str, shape: tuple[int, ...], world: int, dim: int = 0) -> None:
        sizes = list(shape or (1,))
        sizes[dim] = -(-sizes[dim] // world)
        self.name, self.shape, self.numel = name, tuple(sizes), torch.Size(shape).numel()
        self.whole, self.world, self.dim = shape, world, dim
        self.padded = world * self.chunk

    def among(self, world: int) -> Sharded:
        """Return the same parameter in another number of shards."""
        return Sharded(self.name, self.whole, world, self.dim)

    @property
    def chunk(self) -> int:
        """The number of elements of one shard."""
        return torch.Size(self.shape).numel()

    def room(self, form: StoredForm) -> int:
        """The number of elements stored of one shard: those of codes begin a block of their own."""
        return align(self.chunk, form.grain)

    def taken(self, tensor: Tensor) -> Tensor:
        """The elements of all shards, end to end, of a stored tensor that has room for each."""
        form = form_of(tensor)
        if not form.block:
            return tensor
        rooms = read(tensor).view(self.world, self.room(form))
        return rooms[:, : self.chunk].reshape(-1)

    def stored(self, flat: Tensor, form: StoredForm) -> Tensor:
        """Store elements in a tensor from which ``taken`` returns them."""
        if not form.block:
            return flat
        rooms = flat.new_zeros(self.world, self.room(form))
        rooms[:, : self.chunk] = flat.view(self.world, -1)
        stored = form.zeros(rooms.numel(), flat.device)
        write(stored, rooms)
        return stored

    def pad(self, flat: Tensor, before: int) -> Tensor:
        """Remove the padding of ``flat``, and add the padding of these shards.

        Args:
            flat: one shard after the other.
            before: number of the shards that ``flat`` was padded for.
        """
        if self.dim and before != self.world:
            # The shards of columns do not lie as the columns do: they are joined, and cut anew.
            sizes = list(self.shape)
            sizes[self.dim] = sizes[self.dim] * self.world // before
            whole = torch.cat(list(flat[: self.numel].view(before, *sizes)), self.dim)
            return torch.cat([each.reshape(-1) for each in whole.chunk(self.world, self.dim)])
        room = flat.new_zeros(self.padded)
        room[: self.numel] = flat[: self.numel]
        return room
