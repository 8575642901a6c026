"""A bit for each element back to places, block by block."""

import torch
from torch import Tensor

from gradwire.ops._bits import unpack_bits
from gradwire.ops._checks import check_vector
from gradwire.ops._topk import check_places, write_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["bitmap_decode"]


def _check(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    check_places("bitmap_decode", indices, counts, n)
    check_vector("bitmap_decode.bitmap", bitmap, torch.uint8, indices, -(-n // 8))


@operation("bitmap_decode(Tensor bitmap, Tensor(a!) indices, Tensor(b!) counts, int n) -> ()", _check)
def bitmap_decode(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    """Read what ``bitmap_encode`` wrote; of more than k bits the first k count, and none from n on.

    Args:
        bitmap: uint8, ceil(n / 8).
        indices: int16, k elements: the low 16 bits of the places; those that are missing become 0.
        counts: int32, ceil(n / 65536): how many of them lie in each segment of 65536.
        n: elements that the places are among.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> indices, counts = torch.empty(2, dtype=torch.int16), torch.empty(1, dtype=torch.int32)
    >>> bitmap_decode(torch.tensor([0b10010], dtype=torch.uint8), indices, counts, n=5)
    >>> indices.tolist(), counts.tolist()
    ([1, 4], [2])
    """
    write_places(unpack_bits(bitmap, n).nonzero().view(-1)[: indices.numel()], indices, counts)


@bitmap_decode.kernel("CPU")
def _cpu(bitmap: Tensor, indices: Tensor, counts: Tensor, n: int) -> None:
    kernels.bitmap_decode(indices.data_ptr(), counts.data_ptr(), bitmap.data_ptr(), indices.numel(), n)
