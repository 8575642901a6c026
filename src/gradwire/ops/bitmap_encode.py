"""Places, block by block, as a bit for each element."""

import torch
from torch import Tensor

from gradwire.ops._bits import pack_bits
from gradwire.ops._checks import check_vector
from gradwire.ops._topk import check_places, read_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["bitmap_encode"]


def _check(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    check_places("bitmap_encode", indices, counts, n)
    check_vector("bitmap_encode.bitmap", bitmap, torch.uint8, indices, -(-n // 8))


@operation("bitmap_encode(Tensor indices, Tensor counts, Tensor(a!) bitmap, int n) -> ()", _check)
def bitmap_encode(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    """Set the bits of the places: that of element i is bit i % 8 of byte i // 8.

    Args:
        indices: int16, k elements: the low 16 bits of increasing places, as ``topk_encode`` writes them.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536; they add up to k.
        bitmap: uint8, ceil(n / 8).
        n: elements that the places are among.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> indices, counts = torch.tensor([1, 4], dtype=torch.int16), torch.tensor([2], dtype=torch.int32)
    >>> bitmap = torch.empty(1, dtype=torch.uint8)
    >>> bitmap_encode(indices, counts, bitmap, n=5)
    >>> f"{bitmap.item():08b}"
    '00010010'
    """
    bits = torch.zeros(n, dtype=torch.bool, device=indices.device)
    bits[read_places(indices, counts)] = True
    pack_bits(bits, bitmap)


@bitmap_encode.kernel("CPU")
def _cpu(indices: Tensor, counts: Tensor, bitmap: Tensor, n: int) -> None:
    kernels.bitmap_encode(indices.data_ptr(), counts.data_ptr(), bitmap.data_ptr(), indices.numel(), n)
