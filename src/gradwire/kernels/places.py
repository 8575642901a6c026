"""Conversion of the indices of some elements between their form in memory and smaller ones.

In memory they are blocks, see ``_topk``; as gaps they are Golomb-Rice codes, see ``_rice``; or a bit for each element.
"""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.kernels.arguments import Flat
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack_bits, unpack_bits
from gradwire.kernels.rice import read_rice, rice_bytes, rice_shift, write_rice
from gradwire.kernels.segments import read_places, write_places

__all__ = ["bitmap_decode", "bitmap_encode", "rice_decode", "rice_encode"]

Indices = Annotated[Tensor, Flat(torch.int16, "k", written=True)]
Counts = Annotated[Tensor, Flat(torch.int32, "-(-n // 65536)", written=True)]
Stream = Annotated[Tensor, Flat(torch.uint8, "sum(rice_bytes(n, k))", written=True)]
Bitmap = Annotated[Tensor, Flat(torch.uint8, "-(-n // 8)", written=True)]
GivenIndices = Annotated[Tensor, Flat(torch.int16, "k")]
GivenCounts = Annotated[Tensor, Flat(torch.int32, "-(-n // 65536)")]
GivenStream = Annotated[Tensor, Flat(torch.uint8, "sum(rice_bytes(n, k))")]
GivenBitmap = Annotated[Tensor, Flat(torch.uint8, "-(-n // 8)")]


def _check(op: str, indices: Tensor, n: int) -> None:
    require(indices.numel() <= n, f"{op}.indices", f"at most n = {n} elements", indices.numel())


@declared(check=_check, threads=False)
def rice_encode(indices: GivenIndices, counts: GivenCounts, stream: Stream, n: int) -> None:
    """Write the gaps between places: the low b bits of all of them, then their quotients in unary.

        gap = place - (the place before) - 1;  b = max(0, floor(log2((n - k) / k)))

    Args:
        indices: int16, k elements: the low 16 bits of increasing places, as ``topk_encode`` writes them.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536; they add up to k.
        stream: uint8, ceil(k b / 8) + ceil((k + ((n - k) >> b)) / 8): enough for any k places; the rest is 0.
        n: elements that the places are among.

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


@declared(check=_check, threads=False)
def rice_decode(stream: GivenStream, indices: Indices, counts: Counts, n: int) -> None:
    """Read what ``rice_encode`` wrote.

    Bytes from a peer are safe whatever they are: the list ends where the codes do, or at the first place that is not
    below n; then the counts add up to less than k.

    Args:
        stream: uint8, ceil(k b / 8) + ceil((k + ((n - k) >> b)) / 8).
        indices: int16, k elements: the low 16 bits of the places; those that are missing become 0.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536.
        n: elements that the places are among.

    >>> indices, counts = torch.empty(2, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    >>> rice_decode(torch.tensor([0b10010], dtype=torch.uint8), indices, counts, n=5)
    >>> indices.tolist(), counts.tolist()
    ([1, 4], [2])

    Source: as ``rice_encode``.
    """
    k = indices.numel()
    middle = rice_bytes(n, k)[0]
    write_places(read_rice(stream[:middle], stream[middle:], k, rice_shift(n, k), n), indices, counts)


@declared(check=_check, threads=False)
def bitmap_encode(indices: GivenIndices, counts: GivenCounts, bitmap: Bitmap, n: int) -> None:
    """Set the bits of the indices: that of element i is bit i % 8 of byte i // 8.

    Args:
        indices: int16, k elements: the low 16 bits of increasing places, as ``topk_encode`` writes them.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536; they add up to k.
        bitmap: uint8, ceil(n / 8).
        n: elements that the places are among.

    >>> indices, counts = torch.tensor([1, 4], dtype=torch.int16), torch.tensor([2], dtype=torch.int32)
    >>> bitmap = torch.empty(1, dtype=torch.uint8)
    >>> bitmap_encode(indices, counts, bitmap, n=5)
    >>> f"{bitmap.item():08b}"
    '00010010'
    """
    bits = torch.zeros(n, dtype=torch.bool, device=indices.device)
    bits[read_places(indices, counts)] = True
    pack_bits(bits, bitmap)


@declared(check=_check, threads=False)
def bitmap_decode(bitmap: GivenBitmap, indices: Indices, counts: Counts, n: int) -> None:
    """Read what ``bitmap_encode`` wrote; of more than k bits the first k count, and none from n on.

    Args:
        bitmap: uint8, ceil(n / 8).
        indices: int16, k elements: the low 16 bits of the places; those that are missing become 0.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536.
        n: elements that the places are among.

    >>> indices, counts = torch.empty(2, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    >>> bitmap_decode(torch.tensor([0b10010], dtype=torch.uint8), indices, counts, n=5)
    >>> indices.tolist(), counts.tolist()
    ([1, 4], [2])
    """
    write_places(unpack_bits(bitmap, n).nonzero().view(-1)[: indices.numel()], indices, counts)
