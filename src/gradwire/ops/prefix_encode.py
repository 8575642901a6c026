"""Codes bytes with a canonical prefix code, such as Huffman's."""

import torch
from torch import Tensor

from gradwire.ops._entropy import CHUNK, LONGEST, canonical, check_encode, chunk_count
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["prefix_encode"]


def _check(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
    check_encode("prefix_encode", symbols, table, sizes, out)


@operation("prefix_encode(Tensor symbols, Tensor table, Tensor(a!) sizes, Tensor(b!) out) -> ()", _check)
def prefix_encode(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
    """Write the code of each symbol, the chunks of 32768 symbols one after the other, each padded with zero bits.

    Canonical: of two codes of one length the lower symbol has the lower one, and shorter codes come first. The first
    bit of a code is in the highest bit of a byte that is still free.

    Args:
        symbols: uint8, n elements.
        table: int32, 256 lengths of codes that a prefix code can have, 1 to 17 for each symbol that occurs.
        sizes: int32, ceil(n / 32768): bytes of each chunk; all -1 where ``out`` is too small, or the table
            cannot be used.
        out: uint8; what is beyond the sum of the sizes is of no meaning.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[:3], sizes = torch.tensor([1, 2, 2]), torch.empty(1, dtype=torch.int32)
    >>> out = torch.empty(1, dtype=torch.uint8)
    >>> prefix_encode(torch.tensor([0, 1, 2, 0], dtype=torch.uint8), table, sizes, out)
    >>> f"{out.item():08b}"
    '01011000'

    Source: D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", Proceedings of the IRE, 1952.
    """
    n, chunks = symbols.numel(), chunk_count(symbols.numel())
    tables = canonical(table)
    if n == 0 or tables is None:
        sizes.fill_(-1)
        return
    length, code = (torch.tensor(each, device=symbols.device)[symbols.to(torch.int64)] for each in tables)
    padded = torch.nn.functional.pad(length, (0, chunks * CHUNK - n)).view(chunks, CHUNK)
    needed = (padded.sum(1) + 7) // 8
    sizes.copy_(needed)
    total = int(needed.sum())
    if total > out.numel():
        sizes.fill_(-1)
        return
    first = padded.cumsum(1) - padded + 8 * (needed.cumsum(0) - needed).unsqueeze(1)
    places = first.view(-1)[:n]
    bits = torch.zeros(8 * total, dtype=torch.int64, device=symbols.device)
    for j in range(LONGEST):
        there = length > j
        bits[places[there] + j] = code[there] >> (length[there] - 1 - j) & 1
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], device=symbols.device)
    out[:total] = (bits.view(-1, 8) * weights).sum(1)


@prefix_encode.kernel("CPU")
def _cpu(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
    addresses = symbols.data_ptr(), table.data_ptr(), sizes.data_ptr(), out.data_ptr()
    kernels.prefix_encode(*addresses, out.numel(), symbols.numel(), torch.get_num_threads())
