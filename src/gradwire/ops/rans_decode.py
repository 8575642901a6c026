"""Decodes what ``rans_encode`` wrote."""

import torch
from torch import Tensor

from gradwire.ops._entropy import CHUNK, TOTAL, check_decode, cut_stream, sums_up
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["rans_decode"]

_STATES, _LOW = 8, 1 << 16


def _check(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    check_decode("rans_decode", stream, sizes, table, symbols, status)


@operation(
    "rans_decode(Tensor stream, Tensor sizes, Tensor table, Tensor(a!) symbols, Tensor(b!) status) -> ()", _check
)
def rans_decode(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    """Write the symbols; bytes from a peer are safe whatever they are.

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

    Raises:
        ConfigError: a tensor is not of this form.

    >>> table = torch.zeros(256, dtype=torch.int32)
    >>> table[7], symbols = 4096, torch.empty(3, dtype=torch.uint8)
    >>> stream = torch.tensor([0, 0, 1, 0] * 8, dtype=torch.uint8)
    >>> status = torch.zeros(1, dtype=torch.int32)
    >>> rans_decode(stream, torch.tensor([32], dtype=torch.int32), table, symbols, status)
    >>> symbols.tolist(), status.item()
    ([7, 7, 7], 0)

    Source: as ``rans_encode``.
    """
    if not sums_up(table):
        status.fill_(1)
        symbols.zero_()
        return
    frequency = table.to(torch.int64)
    symbol_of = torch.arange(256, device=table.device).repeat_interleave(frequency)
    offset_of = torch.arange(TOTAL, device=table.device) - (frequency.cumsum(0) - frequency)[symbol_of]
    for i, part in enumerate(cut_stream(stream, sizes, status)):
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


@rans_decode.kernel("CPU")
def _cpu(stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    addresses = sizes.data_ptr(), table.data_ptr(), symbols.data_ptr(), status.data_ptr()
    kernels.rans_decode(stream.data_ptr(), stream.numel(), *addresses, symbols.numel(), torch.get_num_threads())
