"""The marked elements as signed powers of two in 4 bits each."""

import torch
from torch import Tensor

from gradwire.ops._bits import unpack_bits
from gradwire.ops._checks import check_vector
from gradwire.ops._exponents import codes_of, pack_nibbles
from gradwire.ops._marks import check_marks
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["exponent_encode"]


def _check(x: Tensor, bitmap: Tensor, counts: Tensor, codes: Tensor, top: int) -> None:  # noqa: ARG001
    check_vector("exponent_encode.x", x, torch.float32, x)
    check_marks("exponent_encode", bitmap, counts, x)
    check_vector("exponent_encode.codes", codes, torch.uint8, x)


@operation("exponent_encode(Tensor x, Tensor bitmap, Tensor counts, Tensor(a!) codes, int top) -> ()", _check)
def exponent_encode(x: Tensor, bitmap: Tensor, counts: Tensor, codes: Tensor, top: int) -> None:  # noqa: ARG001
    """Write ``top`` less the exponent of |x|, rounded to a power of two, and 8 where x < 0.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8), as ``mark_beyond`` writes it.
        counts: int32, ceil(n / 65536), as ``mark_beyond`` writes them with it.
        codes: uint8, half of what the counts add up to, rounded up: two codes to a byte, the first in its lower half.
        top: 0 to 255; the marked elements have this exponent, or up to 7 less.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> bitmap, counts = torch.tensor([5], dtype=torch.uint8), torch.tensor([2], dtype=torch.int32)
    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> exponent_encode(torch.tensor([4.0, 0.0, -1.1]), bitmap, counts, codes, top=129)
    >>> codes.tolist()
    [160]
    """
    codes.copy_(pack_nibbles(codes_of(x[unpack_bits(bitmap, x.numel())], top) & 15))


@exponent_encode.kernel("CPU")
def _cpu(x: Tensor, bitmap: Tensor, counts: Tensor, codes: Tensor, top: int) -> None:
    addresses = x.data_ptr(), bitmap.data_ptr(), counts.data_ptr(), codes.data_ptr()
    kernels.exponent_encode(*addresses, 2 * codes.numel(), top, x.numel(), torch.get_num_threads())
