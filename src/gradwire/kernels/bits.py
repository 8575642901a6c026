"""Integers of 1 to 8 bits in bytes: the first in the lowest bits of the first byte, in two's complement."""

import torch
from torch import Tensor

__all__ = ["pack", "pack_bits", "unpack", "unpack_bits"]


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack the low ``bits`` bits of integers or bools into a new stream; the rest of its last byte is 0.

    >>> pack(torch.tensor([True, False, False, True, False, False, False, False, True]), 1).tolist()
    [9, 1]
    >>> pack(torch.tensor([1, 2, -1]), 4).tolist()
    [33, 15]
    """
    flat = values.reshape(-1)
    n = flat.numel()
    if bits == 1:
        eights = torch.zeros(-(-n // 8), dtype=torch.int64, device=flat.device)
        eights.view(torch.uint8)[:n] = flat if flat.dtype is torch.bool else flat.to(torch.int64) & 1
        # Each factor of 2^(56 - 7 i) brings the bit of byte i to place 56 + i.
        return (eights.mul_(0x0102040810204080) >> 56).to(torch.uint8)
    # Eight values of b bits are exactly b bytes, and fit into one 64-bit word.
    groups = torch.nn.functional.pad(flat, (0, -n % 8)).view(-1, 8).to(torch.int64) & (2**bits - 1)
    words = (groups << _multiples(8, bits, flat.device)).sum(dim=1, keepdim=True)
    stream: Tensor = words >> _multiples(bits, 8, flat.device) & 0xFF
    return stream.view(-1)[: -(-n * bits // 8)].to(torch.uint8)


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Unpack the first ``n`` values, uint8; those beyond the end of ``packed`` are 0.

    >>> unpack(torch.tensor([33, 15], dtype=torch.uint8), 4, 5).tolist()
    [1, 2, 15, 0, 0]
    """
    flat = packed.reshape(-1)[: -(-n * bits // 8)]
    if bits == 1:
        # Byte i of a word of eight copies keeps bit i alone.
        spread = flat.to(torch.int64).mul_(0x0101010101010101).bitwise_and_(0x8040201008040201 - (1 << 64))
        values = (spread.view(torch.uint8)[:n] != 0).view(torch.uint8)
    else:
        groups = torch.nn.functional.pad(flat, (0, -flat.numel() % bits)).view(-1, bits).to(torch.int64)
        words = (groups << _multiples(bits, 8, flat.device)).sum(dim=1, keepdim=True)
        values = (words >> _multiples(8, bits, flat.device) & (2**bits - 1)).view(-1)[:n].to(torch.uint8)
    missing = n - values.numel()
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def pack_bits(bits: Tensor, out: Tensor) -> None:
    """Write ``bits`` to ``out`` (uint8); the remaining bits of ``out`` become 0."""
    stream = pack(bits, 1)
    out[: stream.numel()].copy_(stream)
    out[stream.numel() :].zero_()


def unpack_bits(data: Tensor, count: int) -> Tensor:
    """Unpack the first ``count`` bits as bool; those beyond the end of ``data`` are False."""
    return unpack(data, 1, count).view(torch.bool)


def _multiples(count: int, of: int, device: torch.device) -> Tensor:
    return torch.arange(0, count * of, of, device=device)
