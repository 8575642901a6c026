"""Operations that code bytes without loss: interleaved rANS, canonical prefix codes such as Huffman's, and counts.

A chunk of 32768 symbols is coded by itself; the chunks lie end to end, and their sizes travel beside them.
"""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat
from gradwire.kernels.base import declared

__all__ = [
    "CHUNK",
    "SYMBOLS",
    "TOTAL",
    "byte_counts",
    "chunk_count",
    "prefix_decode",
    "prefix_encode",
    "rans_decode",
    "rans_encode",
]

CHUNK = 32768
"""Symbols that are coded by themselves."""

SYMBOLS = 256

TOTAL = 4096
"""Sum of the frequencies of rANS."""

_STATES, _LOW = 8, 1 << 16

LONGEST = 17
"""Bits of a prefix code at most."""

Symbols = Annotated[Tensor, Flat(torch.uint8, "n")]
Table = Annotated[Tensor, Flat(torch.int32, "SYMBOLS")]
Coded = Annotated[Tensor, Flat(torch.uint8, "room", written=True)]
Sizes = Annotated[Tensor, Flat(torch.int32, "chunk_count(n)", written=True)]
Stream = Annotated[Tensor, Flat(torch.uint8, "length")]
GivenSizes = Annotated[Tensor, Flat(torch.int32, "chunk_count(n)")]
Decoded = Annotated[Tensor, Flat(torch.uint8, "n", written=True)]
Wrong = Annotated[Tensor, Flat(torch.int32, "1", written=True)]


def chunk_count(n: int) -> int:
    """The number of chunks of ``n`` symbols."""
    return -(-n // CHUNK)


@declared
def byte_counts(symbols: Symbols, counts: Annotated[Tensor, Flat(torch.int64, "SYMBOLS", written=True)]) -> None:
    """Count the bytes of each value.

    Args:
        symbols: uint8, n elements; not changed.
        counts: int64, 256: how many there are of each.

    >>> counts = torch.empty(256, dtype=torch.int64)
    >>> byte_counts(torch.tensor([0, 2, 2], dtype=torch.uint8), counts)
    >>> counts[:3].tolist(), int(counts.sum())
    ([1, 0, 2], 3)
    """
    counts.copy_(torch.bincount(symbols, minlength=SYMBOLS))


def _cut_stream(stream: Tensor, sizes: Tensor, status: Tensor) -> list[Tensor]:
    """Cut a stream into the bytes of each chunk, as far as there are any; inconsistent lengths set the status."""
    end, parts = 0, []
    for claimed in sizes.tolist():
        size = min(max(claimed, 0), stream.numel() - end)
        if size != claimed:
            status.fill_(1)
        parts.append(stream[end : end + size])
        end += size
    if end != stream.numel():
        status.fill_(1)
    return parts


def _sums_up(table: Tensor) -> bool:
    """Return whether these are frequencies: none is negative, and they sum to 4096."""
    given: list[int] = table.tolist()
    return sum(given) == TOTAL and min(given) >= 0


@declared
def rans_encode(symbols: Symbols, table: Table, sizes: Sizes, out: Coded) -> None:
    """Write each chunk of 32768 symbols in about sum log2(4096 / frequency) bits, one after the other.

    Symbol i of a chunk belongs to state i % 8. From the last symbol to the first: a state x of 2^20 f or more gives up
    its low 16 bits; then x = 4096 (x div f) + x mod f + (sum of the frequencies before the symbol's). A chunk is its
    final states, 8 uint32, and the words that were given up, uint16, the last one first.

    Args:
        symbols: uint8, n elements.
        table: int32, 256 frequencies that sum to 4096, > 0 for each symbol that occurs.
        sizes: int32, ceil(n / 32768): bytes of each chunk; all -1 where ``out`` is too small, or the table
            cannot be used.
        out: uint8; what is beyond the sum of the sizes is of no meaning.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[7], sizes = 4096, torch.empty(1, dtype=torch.int32)
    >>> rans_encode(torch.full((1000,), 7, dtype=torch.uint8), table, sizes, torch.empty(64, dtype=torch.uint8))
    >>> sizes.tolist()
    [32]

    Source: J. Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression
    rate of arithmetic coding", arXiv:1311.2540, 2013.
    """
    n, chunks = symbols.numel(), chunk_count(symbols.numel())
    if n == 0 or not _sums_up(table):
        sizes.fill_(-1)
        return
    frequency = table.to(torch.int64)
    start = frequency.cumsum(0) - frequency
    rows = min(n, CHUNK) + -min(n, CHUNK) % _STATES
    padded = torch.nn.functional.pad(symbols.to(torch.int64), (0, chunks * CHUNK - n), value=-1)
    grid = padded.view(chunks, CHUNK)[:, :rows].view(chunks, -1, _STATES)
    words, given = torch.zeros_like(grid), torch.zeros_like(grid, dtype=torch.bool)
    x = torch.full_like(grid[:, 0], _LOW)
    for step in range(grid.size(1) - 1, -1, -1):
        symbol = grid[:, step]
        f = frequency[symbol]
        coded = (symbol >= 0) & (f > 0)
        given[:, step] = coded & (x >= f << 20)
        words[:, step] = x & 0xFFFF
        x = torch.where(given[:, step], x >> 16, x)
        f = f.clamp(min=1)
        x = torch.where(coded, (x // f << 12) + x % f + start[symbol], x)
    sizes.copy_(4 * _STATES + 2 * given.sum((1, 2)))
    total = int(sizes.sum())
    if total > out.numel():
        sizes.fill_(-1)
        return
    parts = [part for i in range(chunks) for part in (x[i].int(), words[i][given[i]].to(torch.int16))]
    torch.cat([part.view(torch.uint8) for part in parts], out=out[:total])


@declared
def rans_decode(stream: Stream, sizes: GivenSizes, table: Table, symbols: Decoded, status: Wrong) -> None:
    """Decode the symbols; any bytes from a peer are safe.

    Symbol i of a chunk is the one whose frequencies contain x mod 4096, x being state i % 8; then
    x = f (x div 4096) + x mod 4096 - (sum of the frequencies before the symbol's), and a state below 2^16 takes the
    next word in below. In the end all states are 2^16, and no word is left.

    Args:
        stream: uint8, the chunks one after the other, and nothing else.
        sizes: int32, ceil(n / 32768): bytes of each chunk.
        table: int32, 256 frequencies.
        symbols: uint8, n elements. Beyond the end of a chunk words of 0 are read; zeros for a table that does not sum
            to 4096.
        status: int32 of one element, set to 1 where the bytes are not what ``rans_encode`` writes.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[7], symbols = 4096, torch.empty(3, dtype=torch.uint8)
    >>> stream = torch.tensor([0, 0, 1, 0] * 8, dtype=torch.uint8)
    >>> status = torch.zeros(1, dtype=torch.int32)
    >>> rans_decode(stream, torch.tensor([32], dtype=torch.int32), table, symbols, status)
    >>> symbols.tolist(), status.item()
    ([7, 7, 7], 0)

    Source: as ``rans_encode``.
    """
    if not _sums_up(table):
        status.fill_(1)
        symbols.zero_()
        return
    frequency = table.to(torch.int64)
    symbol_of = torch.arange(256, device=table.device).repeat_interleave(frequency)
    offset_of = torch.arange(TOTAL, device=table.device) - (frequency.cumsum(0) - frequency)[symbol_of]
    for i, part in enumerate(_cut_stream(stream, sizes, status)):
        _decode_chunk(part, frequency, symbol_of, offset_of, symbols[i * CHUNK : (i + 1) * CHUNK], status)


def _decode_chunk(
    part: Tensor, frequency: Tensor, symbol_of: Tensor, offset_of: Tensor, symbols: Tensor, status: Tensor
) -> None:
    head = torch.zeros(4 * _STATES, dtype=torch.uint8, device=part.device)
    head[: part.numel()] = part[: 4 * _STATES]
    whole = 4 * _STATES + (part.numel() - 4 * _STATES) // 2 * 2
    words = part[4 * _STATES : whole].clone().view(torch.int16).to(torch.int64) & 0xFFFF
    words = torch.cat([words, words.new_zeros(symbols.numel() + _STATES)])
    x, used = head.view(torch.int32).to(torch.int64) & 0xFFFFFFFF, 0
    for first in range(0, symbols.numel(), _STATES):
        count = min(_STATES, symbols.numel() - first)
        now = x[:count]
        slot = now & (TOTAL - 1)
        symbols[first : first + count] = symbol_of[slot]
        now = (frequency[symbol_of[slot]] * (now >> 12) + offset_of[slot]) & 0xFFFFFFFF
        hungry = now < _LOW
        taken = used + hungry.cumsum(0) - 1
        x[:count] = torch.where(hungry, now << 16 | words[taken.clamp(min=0)], now)
        used += int(hungry.sum())
    if part.numel() != 4 * _STATES + 2 * used or bool((x != _LOW).any()):
        status.fill_(1)


def _canonical(table: Tensor) -> tuple[list[int], list[int]] | None:
    """Compute length and code of each symbol; None if there are more codes than their lengths allow."""
    lengths = [length if 1 <= length <= LONGEST else 0 for length in table.tolist()]
    codes, code, good = [0] * SYMBOLS, 0, True
    for length in range(1, LONGEST + 1):
        code <<= 1
        for symbol in range(SYMBOLS):
            if lengths[symbol] == length:
                codes[symbol] = code
                code += 1
        good = good and code <= 1 << length
    return (lengths, codes) if good else None


@declared
def prefix_encode(symbols: Symbols, table: Table, sizes: Sizes, out: Coded) -> None:
    """Write the code of each symbol, the chunks of 32768 symbols one after the other, each padded with zero bits.

    Canonical: of two codes of one length the lower symbol has the lower one, and shorter codes come first. The first
    bit of a code is in the highest bit of a byte that is still free.

    Args:
        symbols: uint8, n elements.
        table: int32, 256 lengths of codes that a prefix code can have, 1 to 17 for each symbol that occurs.
        sizes: int32, ceil(n / 32768): bytes of each chunk; all -1 where ``out`` is too small, or the table
            cannot be used.
        out: uint8; what is beyond the sum of the sizes is of no meaning.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[:3], sizes = torch.tensor([1, 2, 2]), torch.empty(1, dtype=torch.int32)
    >>> out = torch.empty(1, dtype=torch.uint8)
    >>> prefix_encode(torch.tensor([0, 1, 2, 0], dtype=torch.uint8), table, sizes, out)
    >>> f"{out.item():08b}"
    '01011000'

    Source: D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", Proceedings of the IRE, 1952.
    """
    n, chunks = symbols.numel(), chunk_count(symbols.numel())
    tables = _canonical(table)
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


@declared
def prefix_decode(stream: Stream, sizes: GivenSizes, table: Table, symbols: Decoded, status: Wrong) -> None:
    """Decode the symbols; any bytes from a peer are safe.

    Args:
        stream: uint8, the chunks one after the other, and nothing else.
        sizes: int32, ceil(n / 32768): bytes of each chunk.
        table: int32, 256 lengths of codes; what is not from 1 to 17 stands for a symbol that does not occur.
        symbols: uint8, n elements; zeros from the first bits on that are no code, or end too early.
        status: int32 of one element, set to 1 where the bytes are not what ``prefix_encode`` writes.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[:3], symbols = torch.tensor([1, 2, 2]), torch.empty(4, dtype=torch.uint8)
    >>> sizes, status = torch.tensor([1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    >>> prefix_decode(torch.tensor([0b01011000], dtype=torch.uint8), sizes, table, symbols, status)
    >>> symbols.tolist()
    [0, 1, 2, 0]

    Source: as ``prefix_encode``.
    """
    tables = _canonical(table)
    symbols.zero_()
    if tables is None:
        status.fill_(1)
        return
    lookup = _lookup(*tables)
    for i, part in enumerate(_cut_stream(stream, sizes, status)):
        found, size = _walk(part, lookup, min(CHUNK, symbols.numel() - i * CHUNK))
        symbols[i * CHUNK : i * CHUNK + len(found)] = torch.tensor(found, dtype=torch.uint8, device=symbols.device)
        if size != part.numel():
            status.fill_(1)


def _lookup(lengths: list[int], codes: list[int]) -> list[tuple[int, int]]:
    """The length and symbol for all values of the next 17 bits; length 0 if they start with no code."""
    table = [(0, 0)] * (1 << LONGEST)
    for symbol, (length, code) in enumerate(zip(lengths, codes, strict=True)):
        if length:
            span = 1 << (LONGEST - length)
            table[code * span : (code + 1) * span] = [(length, symbol)] * span
    return table


def _walk(part: Tensor, lookup: list[tuple[int, int]], count: int) -> tuple[list[int], int]:
    """Decode symbols one by one; return them and the number of bytes, which is -1 if the bytes ended too early."""
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
