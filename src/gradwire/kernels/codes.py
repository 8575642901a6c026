"""Codes of 1 or 2 bits in bytes, the first element in the highest bits, in whole 32-bit words: MXNet's layout."""

import torch
from torch import Tensor

__all__ = ["code_bytes", "pack", "unpack"]


def code_bytes(n: int, bits: int) -> int:
    """The number of bytes of the codes of ``n`` elements.

    >>> code_bytes(17, 2), code_bytes(33, 1)
    (8, 8)
    """
    return -(-n * bits // 32) * 4


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(8 - bits, -1, -bits, dtype=torch.uint8, device=device)


def pack(values: Tensor, bits: int, codes: Tensor) -> None:
    """Write ``values`` (uint8, each below 2**bits) as codes; bits beyond the last element are 0."""
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(values, (0, codes.numel() * per_byte - values.numel()))
    shifted = padded.view(-1, per_byte) << _shifts(bits, values.device)
    codes.copy_(shifted.sum(dim=1, dtype=torch.uint8))


def unpack(codes: Tensor, bits: int, n: int) -> Tensor:
    """Unpack the first ``n`` values, as uint8."""
    values = codes.unsqueeze(1) >> _shifts(bits, codes.device)
    return values.bitwise_and_(2**bits - 1).view(-1)[:n]
