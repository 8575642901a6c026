"""How often each byte occurs."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["byte_counts"]

_BYTES = 256


def _check(symbols: Tensor, counts: Tensor) -> None:
    check_vector("byte_counts.symbols", symbols, torch.uint8, symbols)
    check_vector("byte_counts.counts", counts, torch.int64, symbols, _BYTES)


@operation("byte_counts(Tensor symbols, Tensor(a!) counts) -> ()", _check)
def byte_counts(symbols: Tensor, counts: Tensor) -> None:
    """Count the bytes of each value.

    Args:
        symbols: uint8, n elements; not changed.
        counts: int64, 256: how many there are of each.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> counts = torch.empty(256, dtype=torch.int64)
    >>> byte_counts(torch.tensor([0, 2, 2], dtype=torch.uint8), counts)
    >>> counts[:3].tolist(), int(counts.sum())
    ([1, 0, 2], 3)
    """
    counts.copy_(torch.bincount(symbols, minlength=_BYTES))


@byte_counts.kernel("CPU")
def _cpu(symbols: Tensor, counts: Tensor) -> None:
    kernels.byte_counts(symbols.data_ptr(), counts.data_ptr(), symbols.numel(), torch.get_num_threads())
