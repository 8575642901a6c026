"""MinMaxSketch and coded keys: a list of (key, small rank) pairs with approximate ranks, in a few bits each.

Two rows of 0.3 cells for each key. A key puts its rank into one cell of each row, where the smallest stays; it is read
as the largest of its cells. So a rank is never read too large. Keys increase, and travel as differences of 1 to 4 bytes
with 2 bits each that say how many.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.errors import WireError

__all__ = ["ROWS", "columns", "delta_bytes", "deltas", "insert", "keys_of", "query"]

_MULTIPLIERS = (0x5851F42D, 0x27220A95)
ROWS = len(_MULTIPLIERS)
_WORD = 0xFFFFFFFF


def columns(keys: int) -> int:
    """The number of cells in a row for so many keys.

    >>> columns(10), columns(11)
    (3, 4)
    """
    return -(-3 * keys // 10)


def _cells(keys: Tensor, row: int, width: int) -> Tensor:
    return ((keys * _MULTIPLIERS[row] & _WORD) * width) >> 32


def insert(keys: Tensor, ranks: Tensor) -> Tensor:
    """Make the table, uint8, row after row; cells without a key are 255.

    Args:
        keys: int64, below 2**31.
        ranks: uint8, below 255.
    """
    width = columns(keys.numel())
    table = torch.full((ROWS, width), 255, dtype=torch.uint8, device=keys.device)
    for row in range(ROWS):
        table[row].scatter_reduce_(0, _cells(keys, row, width), ranks, "amin")
    return table.view(-1)


def query(table: Tensor, keys: Tensor) -> Tensor:
    """Look up the rank of each key, uint8: at most the inserted one.

    >>> keys, ranks = torch.tensor([1, 5, 9, 700]), torch.tensor([3, 0, 7, 2], dtype=torch.uint8)
    >>> bool((query(insert(keys, ranks), keys) <= ranks).all())
    True
    """
    rows = table.view(ROWS, -1)
    return torch.stack([rows[row][_cells(keys, row, rows.shape[1])] for row in range(ROWS)]).amax(0)


def deltas(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the differences of increasing keys, the first against 0, and the number of bytes minus one of each."""
    gaps = keys.diff(prepend=keys.new_zeros(1))
    return gaps, (gaps >= 1 << 8).int() + (gaps >= 1 << 16) + (gaps >= 1 << 24)


def delta_bytes(gaps: Tensor, lengths: Tensor) -> Tensor:
    """The lower ``lengths + 1`` bytes of each difference, the lowest first, end to end."""
    wide = gaps.to(torch.int32).view(torch.uint8).view(-1, 4)
    return wide[torch.arange(4, device=gaps.device) <= lengths.unsqueeze(1)]


def keys_of(coded: Tensor, lengths: Tensor, group_sizes: list[int]) -> Tensor:
    """Decode the keys of all groups, int64, from their bytes.

    Raises:
        WireError: the lengths do not add up to the bytes there are.
    """
    wide = torch.zeros(lengths.numel(), 4, dtype=torch.uint8, device=coded.device)
    mask = torch.arange(4, device=coded.device) <= lengths.unsqueeze(1)
    if int(mask.count_nonzero()) != coded.numel():
        raise WireError(f"{lengths.numel()} keys of {int(mask.count_nonzero())} bytes were coded in {coded.numel()}")
    wide[mask] = coded
    gaps = wide.view(torch.int32).view(-1).long() & _WORD
    return torch.cat([part.cumsum(0) for part in torch.split(gaps, group_sizes)])
