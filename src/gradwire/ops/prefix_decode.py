"""Decodes what ``prefix_encode`` wrote."""

import torch
from torch import Tensor

from gradwire.ops._entropy import CHUNK, LONGEST, canonical, check_decode, cut_stream
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["prefix_decode"]


def _check(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    check_decode("prefix_decode", stream, sizes, table, symbols, status)


@operation(
    "prefix_decode(Tensor stream, Tensor sizes, Tensor table, Tensor(a!) symbols, Tensor(b!) status) -> ()", _check
)
def prefix_decode(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    """Write the symbols; bytes from a peer are safe whatever they are.

    Args:
        stream: uint8, the chunks one after the other, and nothing else.
        sizes: int32, ceil(n / 32768): bytes of each chunk.
        table: int32, 256 lengths of codes; what is not from 1 to 17 stands for a symbol that does not occur.
        symbols: uint8, n elements; zeros from the first bits on that are no code, or end too early.
        status: int32 of one element, set to 1 where the bytes are not what ``prefix_encode`` writes.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[:3], symbols = torch.tensor([1, 2, 2]), torch.empty(4, dtype=torch.uint8)
    >>> sizes, status = torch.tensor([1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    >>> prefix_decode(torch.tensor([0b01011000], dtype=torch.uint8), sizes, table, symbols, status)
    >>> symbols.tolist()
    [0, 1, 2, 0]

    Source: as ``prefix_encode``.
    """
    tables = canonical(table)
    symbols.zero_()
    if tables is None:
        status.fill_(1)
        return
    lookup = _lookup(*tables)
    for i, part in enumerate(cut_stream(stream, sizes, status)):
        found, size = _walk(part, lookup, min(CHUNK, symbols.numel() - i * CHUNK))
        symbols[i * CHUNK : i * CHUNK + len(found)] = torch.tensor(found, dtype=torch.uint8, device=symbols.device)
        if size != part.numel():
            status.fill_(1)


def _lookup(lengths: list[int], codes: list[int]) -> list[tuple[int, int]]:
    """Length and symbol for all values of the next 17 bits; a length of 0 where they start with no code."""
    table = [(0, 0)] * (1 << LONGEST)
    for symbol, (length, code) in enumerate(zip(lengths, codes, strict=True)):
        if length:
            span = 1 << (LONGEST - length)
            table[code * span : (code + 1) * span] = [(length, symbol)] * span
    return table


def _walk(part: Tensor, lookup: list[tuple[int, int]], count: int) -> tuple[list[int], int]:
    """The symbols found, and how many bytes they took; -1 where they ended too early."""
    found: list[int] = []
    bit, end = 0, 8 * part.numel()
    digits = f"{int.from_bytes(bytes(part.tolist()), 'big') << LONGEST:0{end + LONGEST}b}"
    for _ in range(count):
        length, symbol = lookup[int(digits[bit : bit + LONGEST], 2)]
        if length == 0 or bit + length > end:
            return found, -1
        found.append(symbol)
        bit += length
    return found, -(-bit // 8)


@prefix_decode.kernel("CPU")
def _cpu(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    addresses = sizes.data_ptr(), table.data_ptr(), symbols.data_ptr(), status.data_ptr()
    kernels.prefix_decode(stream.data_ptr(), stream.numel(), *addresses, symbols.numel(), torch.get_num_threads())
