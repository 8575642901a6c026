"""Operations on count sketches, and on elements replaced by the number of their bucket.

Count sketches hash elements in blocks of 16 neighbours, so that one look-up serves them all. In row a of the table, of
C columns, block b has two Philox words, number 2 (b R + a) and the next:

    first word     the bucket: floor(word * (C / 16) / 2^32), 16 columns in a line
    second word    bit l is the sign of element l of the block, its upper 4 bits r the place: column l xor r of the line

Two elements of one block never meet, two of different blocks with probability 1 / C.
"""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.kernels.arguments import Flat, Floats, Rows, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.float32 import float32
from gradwire.kernels.philox4x32 import philox_words

__all__ = ["bucket_add_decoded", "bucket_encode", "places", "sketch_add", "sketch_estimate"]

BLOCK = 16
_BUCKETS, _HALVES = 256, 1 << 16
_PIECE = 1 << 15

TableRows = Annotated[int, Where("rows in (1, 3, 5, 7)", "1, 3, 5 or 7")]


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


def _check_table(op: str, n: int, counters: int, rows: int) -> None:
    line = rows * BLOCK
    ok = counters % line == 0 and (counters > 0 or n == 0)
    require(ok, f"{op}.table", f"a multiple of rows * {BLOCK} = {line} elements", counters)


@declared(check=_check_table)
def sketch_add(
    x: Floats,
    table: Annotated[Tensor, Flat(torch.float32, "counters", written=True)],
    rows: TableRows,
    key: int,
    step: int,
) -> None:
    """Add each element to one column of each row, with a sign: T[a, h_a(j)] += s_a(j) x[j].

    Column and sign are random words of (key, step), see ``places``; elements are added in order. The sketch is linear:
    those of two vectors add up to the sketch of their sum.

    Args:
        x: float32, n elements; not changed.
        table: float32, rows * C elements, C a multiple of 16.
        rows: 1, 3, 5 or 7.
        key: number of the hash functions, a signed 64-bit integer.
        step: number within their family, a signed 64-bit integer.

    >>> table = torch.zeros(32)
    >>> sketch_add(torch.tensor([3.0, -4.0]), table, rows=1, key=0, step=0)
    >>> sorted(table[table != 0].abs().tolist())
    [3.0, 4.0]

    Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """
    columns = table.numel() // rows
    column, sign = places(x.numel(), columns, rows, key, step, x.device)
    for row, where, signs in zip(table.view(rows, columns), column, sign, strict=True):
        row.index_add_(0, where, x * signs)


@declared(check=_check_table)
def sketch_estimate(
    table: Annotated[Tensor, Flat(torch.float32, "counters")], out: Written, rows: TableRows, key: int, step: int
) -> None:
    """Estimate each element of what was added: out[j] = median over a of s_a(j) T[a, h_a(j)].

    Args:
        table: float32, rows * C elements, as ``sketch_add`` left it.
        out: float32, n elements, overwritten.
        rows: number of rows of the table, as for ``sketch_add``.
        key: number of the hash functions, as for ``sketch_add``.
        step: number within their family, as for ``sketch_add``.

    >>> table, out = torch.zeros(3 * 16), torch.empty(4)
    >>> sketch_add(torch.tensor([1.0, 0.0, -5.0, 2.0]), table, rows=3, key=1, step=2)
    >>> sketch_estimate(table, out, rows=3, key=1, step=2)
    >>> out.tolist()
    [1.0, 0.0, -5.0, 2.0]

    Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """
    columns = table.numel() // rows
    column, sign = places(out.numel(), columns, rows, key, step, out.device)
    seen = table.view(rows, columns).gather(1, column) * sign if out.numel() else sign
    out.copy_(_median(list(seen.unbind(0))))


def _median(values: list[Tensor]) -> Tensor:
    """The median of an odd number of values by compare and swap, so that every device treats a NaN alike."""
    for last in range(len(values) - 1, len(values) // 2 - 1, -1):
        for i in range(last):
            a, b = values[i], values[i + 1]
            swap = b < a
            values[i], values[i + 1] = torch.where(swap, b, a), torch.where(swap, a, b)
    return values[len(values) // 2]


@declared
def bucket_encode(
    x: Floats,
    bucket_of: Annotated[Tensor, Flat(torch.uint8, "_HALVES")],
    codes: Annotated[Tensor, Flat(torch.uint8, "n", written=True)],
    sums: Annotated[Tensor, Flat(torch.float64, "_BUCKETS", written=True)],
    counts: Annotated[Tensor, Flat(torch.int64, "_BUCKETS", written=True)],
) -> None:
    """Look up the bucket of each element by its sign, exponent and 7 bits of mantissa.

    Args:
        x: float32, n elements; not changed.
        bucket_of: uint8, 65536: the bucket of each value of the upper 16 bits of a float32.
        codes: uint8, n: the buckets.
        sums: float64, 256: of the elements of each bucket, 32768 elements at a time, and these sums in their order; on
            an accelerator in any order.
        counts: int64, 256: how many elements each has.

    >>> bucket_of = (torch.arange(65536) >= 32768).to(torch.uint8)
    >>> codes, counts = torch.empty(3, dtype=torch.uint8), torch.empty(256, dtype=torch.int64)
    >>> sums = torch.empty(256, dtype=torch.float64)
    >>> bucket_encode(torch.tensor([1.5, -2.0, 0.5]), bucket_of, codes, sums, counts)
    >>> codes.tolist(), sums[:2].tolist(), counts[:2].tolist()
    ([0, 1, 0], [2.0, -2.0], [2, 1])
    """
    sums.zero_()
    counts.zero_()
    size = _PIECE if x.device.type == "cpu" else max(1, x.numel())
    for part, out in zip(torch.split(x, size), torch.split(codes, size), strict=True):
        own = bucket_of.index_select(0, (part.view(torch.int32) >> 16) & (_HALVES - 1))
        out.copy_(own)
        sums += torch.bincount(own, part.double(), minlength=_BUCKETS)
        counts += torch.bincount(own, minlength=_BUCKETS)


def _check_levels(op: str, buckets: int) -> None:
    require(1 <= buckets <= _BUCKETS, f"{op}.levels", f"1 to {_BUCKETS} for each rank", buckets)


@declared(check=_check_levels)
def bucket_add_decoded(
    codes: Annotated[Tensor, Rows(torch.uint8, "n")],
    levels: Annotated[Tensor, Rows(torch.float32, "buckets")],
    out: Written,
    scale: float,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * levels[code]; codes beyond the levels mean the
    last.

    Args:
        codes: uint8, (W, n), rows contiguous, as ``bucket_encode`` writes them.
        levels: float32, (W, 1 to 256), rows contiguous.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    >>> out = torch.zeros(3)
    >>> bucket_add_decoded(torch.tensor([[0, 1, 9]], dtype=torch.uint8), torch.tensor([[1.0, -4.0]]), out, 0.5)
    >>> out.tolist()
    [0.5, -2.0, -2.0]
    """
    for row, of_rank in zip(codes, levels, strict=True):
        out += (of_rank * float32(scale)).index_select(0, row.int().clamp_(max=of_rank.numel() - 1))
