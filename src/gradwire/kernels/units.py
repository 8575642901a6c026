"""Powers of two in which squares of very small or very large elements neither vanish nor overflow."""

import torch
from torch import Tensor

__all__ = ["exponent_of", "power_of_two"]


def exponent_of(magnitudes: Tensor) -> Tensor:
    """Compute the exponents of magnitudes (float32), limited so that their negatives are those of normal numbers;
    int32.

    >>> exponent_of(torch.tensor([5.0, 1e-45, 3e38])).tolist()
    [2, -126, 126]
    """
    return ((magnitudes.contiguous().view(torch.int32) >> 23) - 127).clamp_(-126, 126)


def power_of_two(exponents: Tensor) -> Tensor:
    """Compute powers of two in float32, from int32 exponents from -126 to 127.

    >>> power_of_two(torch.tensor([-1, 3], dtype=torch.int32)).tolist()
    [0.5, 8.0]
    """
    return (exponents + 127 << 23).view(torch.float32)
