"""The sign of every element in a bit."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._signs import pack_signs, sign_bytes
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sign_encode"]


def _check(x: Tensor, codes: Tensor) -> None:
    check_vector("sign_encode.x", x, torch.float32, x)
    check_vector("sign_encode.codes", codes, torch.uint8, x, sign_bytes(x.numel()))


@operation("sign_encode(Tensor x, Tensor(a!) codes) -> ()", _check)
def sign_encode(x: Tensor, codes: Tensor) -> None:
    """Write which elements are zero or above: 1 if x >= 0 (also for -0.0), else 0 (also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, bit 0 the lowest; the tail is 0.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> sign_encode(torch.tensor([0.5, -0.5, 0.0, -0.1, 3.0]), codes)
    >>> f"{codes.item():08b}"
    '00010101'

    Source: J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for
    Non-Convex Problems", ICML 2018.
    """
    pack_signs(x >= 0, codes)


@sign_encode.kernel("CPU")
def _cpu(x: Tensor, codes: Tensor) -> None:
    kernels.sign_encode(x.data_ptr(), codes.data_ptr(), x.numel(), torch.get_num_threads())
