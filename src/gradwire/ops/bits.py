"""Bools as bits: the first in the lowest bit of the first byte."""

import torch
from torch import Tensor

__all__ = ["pack_bits", "unpack_bits"]


def pack_bits(bits: Tensor, out: Tensor) -> None:
    """Write ``bits`` to ``out`` (uint8); the remaining bits of ``out`` become 0."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, 8 * out.numel() - bits.numel()))
    out.copy_((padded.view(-1, 8) << _shifts(out)).sum(dim=1, dtype=torch.uint8))


def unpack_bits(data: Tensor, count: int) -> Tensor:
    """Unpack the first ``count`` bits as bool; those beyond the end of ``data`` are False."""
    bits = (data.unsqueeze(1) >> _shifts(data) & 1).view(-1)[:count]
    return torch.nn.functional.pad(bits, (0, count - bits.numel())).bool()


def _shifts(data: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=data.device)
