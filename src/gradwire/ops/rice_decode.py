"""Golomb-Rice codes back to places, block by block."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._rice import read_rice, rice_bytes, rice_shift
from gradwire.ops._topk import check_places, write_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["rice_decode"]


def _check(stream: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    check_places("rice_decode", indices, counts, n)
    check_vector("rice_decode.stream", stream, torch.uint8, indices, sum(rice_bytes(n, indices.numel())))


@operation("rice_decode(Tensor stream, Tensor(a!) indices, Tensor(b!) counts, int n) -> ()", _check)
def rice_decode(stream: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    """Read what ``rice_encode`` wrote.

    Bytes from a peer are safe whatever they are: the list ends where the codes do, or at the first place that is not
    below n; then the counts add up to less than k.

    Args:
        stream: uint8, ceil(k b / 8) + ceil((k + ((n - k) >> b)) / 8).
        indices: int16, k elements: the low 16 bits of the places; those that are missing become 0.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536.
        n: elements that the places are among.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> indices, counts = torch.empty(2, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    >>> rice_decode(torch.tensor([0b10010], dtype=torch.uint8), indices, counts, n=5)
    >>> indices.tolist(), counts.tolist()
    ([1, 4], [2])

    Source: as ``rice_encode``.
    """
    k = indices.numel()
    middle = rice_bytes(n, k)[0]
    write_places(read_rice(stream[:middle], stream[middle:], k, rice_shift(n, k), n), indices, counts)


@rice_decode.kernel("CPU")
def _cpu(stream: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    kernels.rice_decode(indices.data_ptr(), counts.data_ptr(), stream.data_ptr(), indices.numel(), n)
