"""What the references of the entropy coders share: chunks, checks, canonical codes."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector

__all__ = ["CHUNK", "LONGEST", "SYMBOLS", "TOTAL", "canonical", "check_decode", "check_encode", "chunk_count",
           "cut_stream", "sums_up"]  # fmt: skip

CHUNK = 32768
"""Symbols that are coded by themselves."""

SYMBOLS = 256

TOTAL = 4096
"""Sum of the frequencies of rANS."""

LONGEST = 17
"""Bits of a prefix code at most."""


def chunk_count(n: int) -> int:
    return -(-n // CHUNK)


def check_encode(name: str, symbols: Tensor, table: Tensor, sizes: Tensor, out: Tensor, what: str = "out") -> None:
    check_vector(f"{name}.symbols", symbols, torch.uint8, symbols)
    check_vector(f"{name}.table", table, torch.int32, symbols, SYMBOLS)
    check_vector(f"{name}.sizes", sizes, torch.int32, symbols, chunk_count(symbols.numel()))
    check_vector(f"{name}.{what}", out, torch.uint8, symbols)


def check_decode(name: str, stream: Tensor, sizes: Tensor, table: Tensor, symbols: Tensor, status: Tensor) -> None:
    check_encode(name, symbols, table, sizes, stream, "stream")
    check_status(f"{name}.status", status, symbols)


def cut_stream(stream: Tensor, sizes: Tensor, status: Tensor) -> list[Tensor]:
    """The bytes of each chunk, as far as there are any; what does not add up sets the status."""
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


def sums_up(table: Tensor) -> bool:
    """Whether these are frequencies: none is negative, and they sum to 4096."""
    given: list[int] = table.tolist()
    return sum(given) == TOTAL and min(given) >= 0


def canonical(table: Tensor) -> tuple[list[int], list[int]] | None:
    """Length and code of each symbol; None where there are more codes than their lengths allow."""
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
