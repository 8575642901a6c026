"""Places, block by block, as Golomb-Rice codes of their gaps."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._rice import rice_bytes, rice_shift, write_rice
from gradwire.ops._topk import check_places, read_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["rice_encode"]


def _check(indices: Tensor, counts: Tensor, stream: Tensor, n: int) -> None:
    check_places("rice_encode", indices, counts, n)
    check_vector("rice_encode.stream", stream, torch.uint8, indices, sum(rice_bytes(n, indices.numel())))


@operation("rice_encode(Tensor indices, Tensor counts, Tensor(a!) stream, int n) -> ()", _check)
def rice_encode(indices: Tensor, counts: Tensor, stream: Tensor, n: int) -> None:
    """Write the gaps between places: the low b bits of all of them, then their quotients in unary.

        gap = place - (the place before) - 1;  b = max(0, floor(log2((n - k) / k)))

    Args:
        indices: int16, k elements: the low 16 bits of increasing places, as ``topk_encode`` writes them.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536; they add up to k.
        stream: uint8, ceil(k b / 8) + ceil((k + ((n - k) >> b)) / 8): enough for any k places; the rest is 0.
        n: elements that the places are among.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> indices, counts = torch.tensor([1, 4], dtype=torch.int16), torch.tensor([2], dtype=torch.int32)
    >>> stream = torch.empty(1, dtype=torch.uint8)
    >>> rice_encode(indices, counts, stream, n=5)
    >>> f"{stream.item():08b}"
    '00010010'

    Source: S. W. Golomb, "Run-Length Encodings", IEEE Transactions on Information Theory, 1966; R. F. Rice, 1979.
    """
    k = indices.numel()
    middle = rice_bytes(n, k)[0]
    write_rice(read_places(indices, counts), rice_shift(n, k), stream[:middle], stream[middle:])


@rice_encode.kernel("CPU")
def _cpu(indices: Tensor, counts: Tensor, stream: Tensor, n: int) -> None:
    kernels.rice_encode(indices.data_ptr(), counts.data_ptr(), stream.data_ptr(), indices.numel(), n)
