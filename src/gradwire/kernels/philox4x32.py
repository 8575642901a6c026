"""Philox4x32-10: four random 32-bit words for every counter, without any state."""

import torch
from torch import Tensor

__all__ = ["philox_words"]

_LOW = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_words(first: int, count: int, key: int | Tensor, step: int | Tensor, device: torch.device) -> Tensor:
    """Compute the words of the counters ``first .. first + count - 1``, as int64 in [0, 2**32), shape (count, 4).

    The 128-bit counter is (c, step), each in 64 bits; ``key`` and ``step`` count modulo 2**64;
    they may be int64 tensors of no dimension.
    """
    counter = torch.arange(count, dtype=torch.int64, device=device) + _signed(first)
    x0, x1 = counter & _LOW, counter >> 32 & _LOW
    x2, x3 = torch.zeros_like(counter) + (step & _LOW), torch.zeros_like(counter) + (step >> 32 & _LOW)
    k0, k1 = key & _LOW, key >> 32 & _LOW
    for _ in range(_ROUNDS):
        # int64 keeps the low 64 bits of a product, so its upper half is right after the mask, whatever the sign.
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1, x2, x3 = (p1 >> 32 & _LOW) ^ x1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ x3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return torch.stack((x0, x1, x2, x3), dim=1)


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
