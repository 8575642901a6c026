"""Powers of two of a tensor, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._natural import check_codes, check_parameters, encode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["natural_encode"]


def _check(
    x: Tensor,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
) -> None:
    check_parameters("natural_encode", rounding, block)
    check_vector("natural_encode.x", x, torch.float32, x)
    check_codes("natural_encode", x, bases, codes, block)


@operation(
    "natural_encode(Tensor x, Tensor(a!) bases, Tensor(b!) codes, str rounding, int block, int key, int step) -> ()",
    _check,
)
def natural_encode(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    """Round each element to a power of two, up or down at random so that it is right on average, or to the nearest.

        |x| = 2**e (1 + f)  becomes  2**(e + 1) with probability f, else 2**e

    The carry of bits(|x|) + r, r the lowest 23 bits of word i of ``philox`` for element i, has exactly this
    probability. The nearest power is that of bits(|x|) + 2**22. Codes hold exponents of a window of 127 that ends above
    the largest element of each block; what lies below becomes 0. A block that holds an infinity or a NaN decodes to
    NaN, and nothing is rounded up beyond 2**127.

    Args:
        x: float32, n elements; not changed.
        bases: uint8, ceil(n / block): the biased exponent below each block's window, 255 where it is not finite.
        codes: uint8, n: sign << 7 | m, m = 0 for zero, else the biased exponent less that base.
        rounding: "random" or "nearest".
        block: elements that share a window, a multiple of 16 from 16 to 65536.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks whose errors must be independent.
        step: of the stream; a new one for every call.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> bases, codes = torch.empty(1, dtype=torch.uint8), torch.empty(3, dtype=torch.uint8)
    >>> natural_encode(torch.tensor([1.0, -0.5, 0.0]), bases, codes, "random", block=16, key=1, step=0)
    >>> bases.item(), codes.tolist()
    (1, [126, 253, 0])

    Source: S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik, "Natural Compression for Distributed
    Deep Learning", MSML 2022.
    """
    encode(x, bases, codes, rounding, block, key, step)


@natural_encode.kernel("CPU")
def _cpu(x: Tensor, bases: Tensor, codes: Tensor, rounding: str, block: int, key: int, step: int) -> None:
    addresses = x.data_ptr(), bases.data_ptr(), codes.data_ptr()
    kernels.natural_encode(*addresses, rounding == "random", block, key, step, x.numel(), torch.get_num_threads())
