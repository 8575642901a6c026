"""Ternary codes five to a byte, 1.6 bits each, made from codes of 2 bits and read back into them.

A code of 2 bits is 0, 1 or 3 (a level of 0, +1, -1 in two's complement), its digit 0, 1 or 2; five digits make the byte
d0 + 3 d1 + 9 d2 + 27 d3 + 81 d4. What lies beyond the last element is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire._once import once
from gradwire.errors import WireError

__all__ = ["LARGEST", "check_trits", "pack_trits", "room_for", "trit_bytes", "unpack_trits"]

LARGEST = 242
"""No byte of five digits is larger."""

_WORDS = 1 << 13
"""Converted at once: a word is 20 codes, five bytes of 2-bit codes and four bytes of digits."""


def trit_bytes(n: int) -> int:
    """The number of bytes that ``n`` codes take.

    >>> trit_bytes(0), trit_bytes(5), trit_bytes(6)
    (0, 1, 2)
    """
    return -(-n // 5)


def room_for(codes: Tensor, n: int, packing: str) -> Tensor:
    """A buffer for the 2-bit codes of ``n`` elements: the payload's ``codes``, or a temporary one to be repacked."""
    return codes if packing == "bits" else torch.empty(-(-n // 4), dtype=torch.uint8, device=codes.device)


def check_trits(name: str, codes: Tensor) -> None:
    """Refuse bytes that are not five ternary digits.

    Raises:
        WireError: one is larger than 242.
    """
    if bool((codes > LARGEST).any()):
        raise WireError(f"{name} codes of five to a byte must be at most {LARGEST}, got {int(codes.max())}")


def pack_trits(codes: Tensor, out: Tensor) -> None:
    """Repack codes of 2 bits, four to a byte, into ternary digits, five to a byte.

    >>> out = torch.empty(1, dtype=torch.uint8)
    >>> pack_trits(torch.tensor([0b00001101], dtype=torch.uint8), out)
    >>> out.item() == 1 + 3 * 2
    True
    """
    to_digits, _ = _tables(out.device)
    for part, source in zip(torch.split(out, 4 * _WORDS), torch.split(codes, 5 * _WORDS), strict=True):
        fives = (_joined(source, 5, 8).unsqueeze(1) >> _shifts(4, 10, out.device)) & 1023
        part.copy_(to_digits[fives].view(-1)[: part.numel()])


def unpack_trits(packed: Tensor, codes: Tensor) -> None:
    """Repack ternary digits, five to a byte, into codes of 2 bits, four to a byte."""
    _, to_codes = _tables(packed.device)
    for part, target in zip(torch.split(packed, 4 * _WORDS), torch.split(codes, 5 * _WORDS), strict=True):
        fours = _joined(to_codes[part.int()], 4, 10).unsqueeze(1) >> _shifts(5, 8, packed.device)
        target.copy_((fours & 255).view(-1)[: target.numel()])


@once
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """Tables from five 2-bit codes to the byte of their digits, and back."""
    place = torch.arange(5, device="cpu")
    code = torch.arange(1024, device="cpu").unsqueeze(1) >> 2 * place & 3
    digit = torch.arange(256, device="cpu").unsqueeze(1) // 3**place % 3
    digits = ((code - (code >> 1)) * 3**place).sum(1).to(torch.uint8)
    return digits.to(device), ((digit + (digit >> 1)) << 2 * place).sum(1).to(device)


def _joined(parts: Tensor, count: int, bits: int) -> Tensor:
    """Join ``count`` parts of so many bits in one int64, the first in the lowest bits; missing
    parts at the end are 0.
    """
    padded = torch.nn.functional.pad(parts, (0, -parts.numel() % count)).view(-1, count).long()
    return (padded << _shifts(count, bits, parts.device)).sum(1)


def _shifts(count: int, bits: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * bits
