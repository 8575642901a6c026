"""Where a count sketch puts an element, and with which sign.

Elements are hashed in blocks of 16 neighbours, so that one look-up serves them all. In row a of the table, of C
columns, block b has two Philox words, number 2 (b R + a) and the next:

    first word     the bucket: floor(word * (C / 16) / 2^32), 16 columns in a line
    second word    bit l is the sign of element l of the block, its upper 4 bits r the place: column l xor r of the line

Two elements of one block never meet, two of different blocks with probability 1 / C.
"""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector
from gradwire.ops._philox import philox_words

__all__ = ["BLOCK", "check_table", "places"]

BLOCK = 16


def check_table(op: str, x: Tensor, table: Tensor, rows: int) -> None:
    check_vector(f"{op}.table", table, torch.float32, x)
    require(rows in (1, 3, 5, 7), f"{op}.rows", "1, 3, 5 or 7", rows)
    size, line = table.numel(), rows * BLOCK
    ok = size % line == 0 and (size > 0 or x.numel() == 0)
    require(ok, f"{op}.table", f"a multiple of rows * {BLOCK} = {line} elements", size)


def places(n: int, columns: int, rows: int, key: int, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The column and the sign of each of ``n`` elements in each row, (rows, n): int64 and float32."""
    blocks = -(-n // BLOCK)
    words = (
        philox_words(0, -(-blocks * rows // 2), key, step, device).view(-1)[: 2 * blocks * rows].view(blocks, rows, 2)
    )
    first, second = words.unbind(-1)
    lane = torch.arange(BLOCK, device=device)
    line = (first * (columns // BLOCK) >> 32) * BLOCK
    column = line.unsqueeze(-1) + (lane ^ (second >> 28).unsqueeze(-1))
    sign = 1.0 - 2.0 * (second.unsqueeze(-1) >> lane & 1)
    return column.transpose(0, 1).reshape(rows, -1)[:, :n], sign.transpose(0, 1).reshape(rows, -1)[:, :n]
