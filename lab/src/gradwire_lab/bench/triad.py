"""The yardstick: a = b + s * c over as many bytes as the operation beside it must move."""

from __future__ import annotations

import torch

from gradwire.kernels.native import kernels

__all__ = ["Triad"]

_BYTES_PER_ELEMENT = 12


class Triad:
    """A triad of which one call moves ``nbytes`` with the current number of threads: two thirds read, one third
    written.

    It is the C++ kernel of the extension; where that is not loaded, torch's own.

    Example:
        >>> triad = Triad(1200)
        >>> triad.a.numel()
        100
        >>> triad()
        >>> triad.a[0].item()
        7.0

    Source:
        J. D. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA
        Newsletter, 1995.
    """

    def __init__(self, nbytes: int) -> None:
        n = max(1, round(nbytes / _BYTES_PER_ELEMENT))
        self.a, self.b, self.c = torch.zeros(n), torch.ones(n), torch.full((n,), 2.0)

    def __call__(self) -> None:
        if kernels is None:
            torch.add(self.b, self.c, alpha=3.0, out=self.a)
            return
        addresses = (self.a.data_ptr(), self.b.data_ptr(), self.c.data_ptr())
        kernels.triad(*addresses, 3.0, self.a.numel(), torch.get_num_threads())
