"""Codes bytes with interleaved rANS."""

import torch
from torch import Tensor

from gradwire.ops._entropy import CHUNK, check_encode, chunk_count, sums_up
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["rans_encode"]

_STATES, _LOW = 8, 1 << 16


def _check(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
    check_encode("rans_encode", symbols, table, sizes, out)


@operation("rans_encode(Tensor symbols, Tensor table, Tensor(a!) sizes, Tensor(b!) out) -> ()", _check)
def rans_encode(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
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

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[7], sizes = 4096, torch.empty(1, dtype=torch.int32)
    >>> rans_encode(torch.full((1000,), 7, dtype=torch.uint8), table, sizes, torch.empty(64, dtype=torch.uint8))
    >>> sizes.tolist()
    [32]

    Source: J. Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression
    rate of arithmetic coding", arXiv:1311.2540, 2013.
    """
    n, chunks = symbols.numel(), chunk_count(symbols.numel())
    if n == 0 or not sums_up(table):
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


@rans_encode.kernel("CPU")
def _cpu(symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor) -> None:
    addresses = symbols.data_ptr(), table.data_ptr(), sizes.data_ptr(), out.data_ptr()
    kernels.rans_encode(*addresses, out.numel(), symbols.numel(), torch.get_num_threads())
