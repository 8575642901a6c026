"""Tiles of matrices that are transformed: where they lie in one tensor, and in the pieces that one call works on.

A matrix is cut into whole tiles of c x c, from its first element on, and into shorter ones at its right and lower edge.
Of each tile as many coefficients are sent as of any other of its size, tile after tile, one kind after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.helpers import count_of
from gradwire.kernels import Each, Places

__all__ = ["Kind", "batches", "chunks", "kinds", "parts", "regions", "rows_of"]

_BATCH, _LARGE_BATCH = 1 << 16, 1 << 24
"""Elements transformed at once, or one tile if that is more: few enough for a cache of the CPU, and on an accelerator
enough that it has work.
"""


class Kind(NamedTuple):
    """Tiles of one size: ``down`` times ``across`` of a x b, from (``top``, ``left``) on, k sent of each."""

    top: int
    left: int
    down: int
    across: int
    a: int
    b: int
    k: int

    @property
    def tiles(self) -> int:
        return self.down * self.across


def rows_of(shape: Sequence[int]) -> int:
    """The rows of a tensor as a matrix; a vector is one."""
    return shape[0] if len(shape) > 1 else 1


def kinds(shape: Sequence[int], chunk: int, ratio: float) -> list[Kind]:
    """The kinds of tiles: whole, cut at the right edge, at the lower edge, and at both."""
    n, m = math.prod(shape), rows_of(shape)
    if n == 0:
        return []
    return [
        Kind(top, left, down, across, a, b, count_of(ratio, a * b))
        for top, down, a in _cuts(m, chunk)
        for left, across, b in _cuts(n // m, chunk)
    ]


def parts(shape: Sequence[int], chunk: int, ratio: float) -> Iterator[tuple[Kind, int, int]]:
    """Each kind of tile, with the start and end of its part of the fields of a payload."""
    first = 0
    for kind in kinds(shape, chunk, ratio):
        last = first + kind.tiles * kind.k
        yield kind, first, last
        first = last


def _cuts(size: int, chunk: int) -> list[tuple[int, int, int]]:
    """The (start, count, length) of the whole chunks and of the rest, if there are any.

    >>> _cuts(200, 64), _cuts(10, 64)
    ([(0, 3, 64), (192, 1, 8)], [(0, 1, 10)])
    """
    whole, rest = divmod(size, chunk)
    return [cut for cut in ((0, whole, chunk), (whole * chunk, 1, rest)) if cut[1] * cut[2]]


def _at_once(kind: Kind, device: torch.device) -> int:
    """The tiles that are transformed at once."""
    return max(1, (_BATCH if device.type == "cpu" else _LARGE_BATCH) // (kind.a * kind.b))


def batches(matrix: Tensor, kind: Kind) -> Iterator[tuple[Tensor, int]]:
    """Yield views of (p, q, a, b), a few tiles each, with the number of the first."""
    region = matrix[kind.top :, kind.left :][: kind.down * kind.a, : kind.across * kind.b]
    tiles = region.view(kind.down, kind.a, kind.across, kind.b).transpose(1, 2)
    many = _at_once(kind, matrix.device)
    lines, wide = max(1, many // kind.across), min(many, kind.across)
    for i in range(0, kind.down, lines):
        for j in range(0, kind.across, wide):
            yield tiles[i : i + lines, j : j + wide], i * kind.across + j


class Chunk(NamedTuple):
    """Tiles of one size of several pieces that are transformed at once.

    Attributes:
        a: rows of a tile.
        b: columns of a tile.
        starts: int64, for each row of each tile the place of its first element in the tensor of the pieces.
        tiles: places of the tiles of each piece where these lie one after the other.
        values: places of what is sent of them in the values of the payloads.
        indices: places of the same in the indices.
    """

    a: int
    b: int
    starts: Tensor
    tiles: Places
    values: Places
    indices: Places

    def gather(self, x: Tensor) -> Tensor:
        """Copy the tiles of ``x``, one after the other: (rows of all tiles, b)."""
        # A GPU copies a list of matrices with gaps one by one, but selects rows of all of them in one launch.
        windows = x.as_strided((x.numel() - self.b + 1, self.b), (1, 1))
        return windows.index_select(0, self.starts)


class Region(NamedTuple):
    """Tiles of one size of several pieces, to which waves are added.

    Attributes:
        a: rows of a tile.
        b: columns of a tile.
        values: places of the coefficients of each piece in the values of the payloads.
        indices: places of the same in the indices.
        out: places of what is from the first tile of each piece on.
        sizes: the tiles below each other, those side by side, and the pitch of the matrix, of each piece.
    """

    a: int
    b: int
    values: Places
    indices: Places
    out: Places
    sizes: tuple[Each, Each, Each]


class _Tiles(NamedTuple):
    """Tiles of one kind of a piece, ``number`` of them from ``first`` on."""

    piece: int
    kind: Kind
    first: int
    number: int
    field: int
    """The first element of the kind in the fields of the piece's payload."""

    def starts(self, lo: int, pitch: int) -> Tensor:
        """The first element of each row of each tile, of a piece that begins at ``lo``."""
        kind, tile = self.kind, torch.arange(self.first, self.first + self.number, device="cpu")
        corner = (kind.top + tile // kind.across * kind.a) * pitch + kind.left + tile % kind.across * kind.b
        return (lo + corner.unsqueeze(1) + torch.arange(kind.a, device="cpu") * pitch).view(-1)


def chunks(
    pieces: Places, fields: tuple[Places, Places], chunk: int, ratio: float, device: torch.device
) -> tuple[Chunk, ...]:
    """Divide the tiles of all pieces into those that are transformed at once; for ``Places.derive``.

    Args:
        pieces: places of the pieces, with their shapes.
        fields: places of the values and of the indices of their payloads.
        chunk: c, the size of a whole tile.
        ratio: share of the coefficients that are sent.
        device: device of the pieces.
    """
    found: list[Chunk] = []
    for alike in _by_size(pieces, fields, chunk, ratio).values():
        many, group, room = _at_once(alike[0].kind, device), [], 0
        for tiles in alike:
            first = 0
            while first < tiles.number:
                count = min(tiles.number - first, many - room)
                group.append(tiles._replace(first=first, number=count))
                first, room = first + count, room + count
                if room == many:
                    found.append(_chunk(group, pieces, fields, device))
                    group, room = [], 0
        if group:
            found.append(_chunk(group, pieces, fields, device))
    return tuple(found)


def _chunk(group: Sequence[_Tiles], pieces: Places, fields: tuple[Places, Places], device: torch.device) -> Chunk:
    kind = group[0].kind
    starts = [each.starts(pieces.offsets[each.piece], _pitch(pieces.shapes[each.piece])) for each in group]
    sizes = [each.number * kind.a * kind.b for each in group]
    lows = [sum(sizes[:i]) for i in range(len(sizes))]
    values, indices = (_inside(field, group) for field in fields)
    return Chunk(kind.a, kind.b, torch.cat(starts).to(device), Places(sum(sizes), lows, sizes), values, indices)


def regions(pieces: Places, fields: tuple[Places, Places], chunk: int, ratio: float) -> tuple[Region, ...]:
    """Group the tiles of all pieces by their size, for a decoder; for ``Places.derive``.

    Args:
        pieces: places of the pieces, with their shapes.
        fields: places of the values and of the indices of their payloads.
        chunk: c, the size of a whole tile.
        ratio: share of the coefficients that are sent.
    """
    found = []
    for (a, b), group in _by_size(pieces, fields, chunk, ratio).items():
        pitches = [_pitch(pieces.shapes[each.piece]) for each in group]
        corners = [each.kind.top * pitch + each.kind.left for each, pitch in zip(group, pitches, strict=True)]
        lows = [pieces.offsets[each.piece] + corner for each, corner in zip(group, corners, strict=True)]
        sizes = [pieces.sizes[each.piece] - corner for each, corner in zip(group, corners, strict=True)]
        values, indices = (_inside(field, group) for field in fields)
        numbers = Each(each.kind.down for each in group), Each(each.kind.across for each in group), Each(pitches)
        found.append(Region(a, b, values, indices, Places(pieces.length, lows, sizes), numbers))
    return tuple(found)


def _by_size(
    pieces: Places, fields: tuple[Places, Places], chunk: int, ratio: float
) -> dict[tuple[int, int], list[_Tiles]]:
    """Group the tiles of all pieces by rows and columns."""
    groups: dict[tuple[int, int], list[_Tiles]] = {}
    for piece, shape in enumerate(pieces.shapes):
        sent = 0
        for kind, first, end in parts(shape, chunk, ratio):
            groups.setdefault((kind.a, kind.b), []).append(_Tiles(piece, kind, 0, kind.tiles, first))
            sent = end
        if any(field.sizes[piece] != sent for field in fields):
            raise AssertionError(f"payloads of a tensor of {shape} have {sent} values, not {fields[0].sizes[piece]}")
    return groups


def _inside(field: Places, group: Sequence[_Tiles]) -> Places:
    """The places of what is sent of tiles in a field of the payloads."""
    lows = [field.offsets[each.piece] + each.field + each.first * each.kind.k for each in group]
    return Places(field.length, lows, [each.number * each.kind.k for each in group])


def _pitch(shape: Sequence[int]) -> int:
    """The elements from one row of a tensor to the next."""
    return math.prod(shape) // rows_of(shape)
