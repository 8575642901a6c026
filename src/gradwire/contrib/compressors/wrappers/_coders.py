"""Sections of entropy-coded bytes: the coders, the tables that they make of counts, and the header of a section.

Invariants:
    * A section is one byte that names its form, then, unless it is raw, a bitmap of the symbols that occur, an entry
      for each of them, the sizes of the chunks, and the chunks.
    * It is never longer than the bytes themselves and that one byte.
    * Tables are made with integers and one rounded division, so every machine makes the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.contrib.compressors.wrappers import ops
from gradwire.contrib.compressors.wrappers.ops import SYMBOLS, TOTAL, chunk_count
from gradwire.errors import WireError

__all__ = ["CODERS", "elias", "frequencies", "huffman", "read_section", "write_section"]

RAW = 0
LONGEST = 15
BITMAP = SYMBOLS // 8


@dataclass(frozen=True)
class Coder:
    """One way to code bytes.

    Args:
        form: the byte that names it.
        width: bytes of a table entry.
        table: entries, 0 where a symbol does not occur, from how often each symbol occurs.
        encode: the operation that writes the chunks.
        decode: the operation that reads them.
    """

    form: int
    width: int
    table: Callable[[Sequence[int]], list[int]]
    encode: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    decode: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def frequencies(counts: Sequence[int]) -> list[int]:
    """Round counts to frequencies that sum to 4096, at least 1 for each symbol that occurs, at the least cost in bits.

    >>> frequencies([3, 1, 0, 0] + [0] * 252)[:4]
    [3072, 1024, 0, 0]
    """
    total = sum(counts)
    table = [max(1, TOTAL * count // total) if count else 0 for count in counts]
    gap = TOTAL - sum(table)
    # One more of f saves about count / (f + 1/2) of a nat, one less costs count / (f - 1/2).
    step = 1 if gap > 0 else -1
    heap = [(_price(counts[i], f, step), i) for i, f in enumerate(table) if f and f + step > 0]
    heapq.heapify(heap)
    for _ in range(abs(gap)):
        _, i = heapq.heappop(heap)
        table[i] += step
        if table[i] + step > 0:
            heapq.heappush(heap, (_price(counts[i], table[i], step), i))
    return table


def _price(count: int, frequency: int, step: int) -> float:
    return -step * count / (2 * frequency + step)


def huffman(counts: Sequence[int]) -> list[int]:
    """Compute lengths of Huffman's code, of at most 15 bits: counts of rare symbols are raised until it fits.

    >>> huffman([5, 2, 1] + [0] * 253)[:3]
    [1, 2, 2]
    """
    weights = list(counts)
    while max(lengths := _huffman(weights)) > LONGEST:
        weights = [(weight + 1) // 2 if weight else 0 for weight in weights]
    return lengths


def _huffman(weights: Sequence[int]) -> list[int]:
    heap: list[tuple[int, int, list[int]]] = [(weight, i, [i]) for i, weight in enumerate(weights) if weight]
    lengths = [0] * SYMBOLS
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    heapq.heapify(heap)
    while len(heap) > 1:
        (a, i, left), (b, j, right) = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in left + right:
            lengths[symbol] += 1
        heapq.heappush(heap, (a + b, min(i, j), left + right))
    return lengths


def elias(counts: Sequence[int]) -> list[int]:
    """Compute lengths of Elias' gamma code of 1, 2, 3 ..., the most frequent symbol first: 2 floor(log2 rank) + 1 bits.

    >>> elias([2, 5, 1] + [0] * 253)[:3]
    [3, 1, 3]
    """
    lengths = [0] * SYMBOLS
    ranked = sorted((i for i in range(SYMBOLS) if counts[i]), key=lambda i: (-counts[i], i))
    for rank, symbol in enumerate(ranked, 1):
        lengths[symbol] = 2 * rank.bit_length() - 1
    return lengths


CODERS = {
    "rans": Coder(1, 2, frequencies, ops.rans_encode, ops.rans_decode),
    "huffman": Coder(2, 1, huffman, ops.prefix_encode, ops.prefix_decode),
    "elias": Coder(2, 1, elias, ops.prefix_encode, ops.prefix_decode),
}
"""Huffman and Elias are prefix codes, of which a reader needs only the lengths."""

FORMS = {coder.form: coder for coder in CODERS.values()}


def write_section(symbols: Tensor, out: Tensor, coder: Coder) -> int:
    """Write a section; return the number of its bytes.

    Args:
        symbols: uint8, n > 0 elements.
        out: uint8, n + 1 elements; those beyond the section are of no meaning.
    """
    found = torch.empty(SYMBOLS, dtype=torch.int64, device=symbols.device)
    ops.byte_counts(symbols, found)
    counts = found.tolist()
    table = coder.table(counts)
    sizes = torch.empty(chunk_count(symbols.numel()), dtype=torch.int32, device=symbols.device)
    present = [i for i in range(SYMBOLS) if counts[i]]
    start = 1 + BITMAP + coder.width * len(present) + sizes.nbytes
    if start < symbols.numel():
        coder.encode(
            symbols, torch.tensor(table, dtype=torch.int32, device=symbols.device), sizes, out[start : symbols.numel()]
        )
        if int(sizes[0]) >= 0:
            bitmap = sum(1 << i for i in present).to_bytes(BITMAP, "little")
            entries = b"".join(table[i].to_bytes(coder.width, "little") for i in present)
            head = torch.frombuffer(bytearray([coder.form]) + bitmap + entries, dtype=torch.uint8)
            out[: head.numel()].copy_(head)
            out[head.numel() : start].copy_(sizes.view(torch.uint8))
            return start + int(sizes.sum())
    out[0] = RAW
    out[1:].copy_(symbols)
    return out.numel()


def read_section(stream: Tensor, symbols: Tensor) -> int:
    """Read a section into ``symbols``; return the number of its bytes.

    Raises:
        WireError: the bytes are not what ``write_section`` writes.
    """
    form = int(stream[0]) if stream.numel() else -1
    if form == RAW and stream.numel() > symbols.numel():
        symbols.copy_(stream[1 : 1 + symbols.numel()])
        return 1 + symbols.numel()
    if form not in FORMS or stream.numel() < 1 + BITMAP:
        raise WireError(f"a section of {symbols.numel()} bytes starts with form {form} and {stream.numel()} are left")
    coder, chunks = FORMS[form], chunk_count(symbols.numel())
    bitmap = int.from_bytes(bytes(stream[1 : 1 + BITMAP].tolist()), "little")
    present = [i for i in range(SYMBOLS) if bitmap >> i & 1]
    middle = 1 + BITMAP + coder.width * len(present)
    start = middle + 4 * chunks
    sizes = stream[middle:start].clone().view(torch.int32) if start <= stream.numel() else stream.new_full((1,), 255)
    end = start + int(sizes.long().sum())
    if not start <= end <= stream.numel() or bool((sizes < 0).any()):
        raise WireError(f"a section of {stream.numel()} bytes claims {end}")
    status = torch.zeros(1, dtype=torch.int32, device=stream.device)
    coder.decode(stream[start:end], sizes, table_of(coder, stream[1 + BITMAP : middle], present), symbols, status)
    if bool(status):
        raise WireError(f"the chunks of a section of {symbols.numel()} bytes are not what their table can code")
    return end


def table_of(coder: Coder, entries: Tensor, present: list[int]) -> Tensor:
    table = torch.zeros(SYMBOLS, dtype=torch.int32, device=entries.device)
    if present:
        weights = 256 ** torch.arange(coder.width, dtype=torch.int32, device=entries.device)
        table[present] = (entries.view(-1, coder.width) * weights).sum(1, dtype=torch.int32)
    return table
