"""2-bit codes of what reaches a level that differs a little between elements, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._codes import code_bytes, pack
from gradwire.ops._dither import fires
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["dithered_encode"]


def _check(x: Tensor, codes: Tensor, level: Tensor) -> None:
    check_vector("dithered_encode.x", x, torch.float32, x)
    check_vector("dithered_encode.codes", codes, torch.uint8, x, code_bytes(x.numel(), 2))
    check_vector("dithered_encode.level", level, torch.float32, x, 1)


@operation("dithered_encode(Tensor x, Tensor(a!) codes, Tensor level) -> ()", _check)
def dithered_encode(x: Tensor, codes: Tensor, level: Tensor) -> None:
    """Write which elements reach their level: 11 if x_i >= d_i l, 10 if x_i <= -d_i l, else 00 (so also for NaN).

    d_i = 1 + the fractional part of i times the golden ratio, to 23 bits: equal elements do not all fire at once.

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        level: float32, 1 element, l > 0, in the unit of x.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> dithered_encode(torch.tensor([1.5, 1.5, -1.5, -1.5]), codes, torch.ones(1))
    >>> f"{codes[0].item():08b}"
    '11001000'
    """
    above, below = fires(x, level)
    pack(torch.where(above, 3, torch.where(below, 2, 0)).to(torch.uint8), 2, codes)


@dithered_encode.kernel("CPU")
def _cpu(x: Tensor, codes: Tensor, level: Tensor) -> None:
    kernels.dithered_encode(x.data_ptr(), codes.data_ptr(), level.data_ptr(), x.numel(), torch.get_num_threads())
