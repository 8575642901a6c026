"""2-bit codes of the elements beyond a threshold, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._codes import code_bytes, pack
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["strom_encode"]


def _check(x: Tensor, codes: Tensor, threshold: float) -> None:  # noqa: ARG001
    check_vector("strom_encode.x", x, torch.float32, x)
    check_vector("strom_encode.codes", codes, torch.uint8, x, code_bytes(x.numel(), 2))


@operation("strom_encode(Tensor x, Tensor(a!) codes, float threshold) -> ()", _check)
def strom_encode(x: Tensor, codes: Tensor, threshold: float) -> None:
    """Write which elements are beyond the threshold: 11 if x > t, 10 if x < -t, else 00 (so also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 16) bytes, as ``twobit_encode`` writes them.
        threshold: t > 0, in the unit of x; rounded to float32.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> strom_encode(torch.tensor([0.5, -0.75, 0.49, 1.3]), codes, 0.5)
    >>> bytes(codes.tolist()).hex()
    '23000000'

    Source: N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """
    t = float32(threshold)
    pack(torch.where(x > t, 3, torch.where(x < -t, 2, 0)).to(torch.uint8), 2, codes)


@strom_encode.kernel("CPU")
def _cpu(x: Tensor, codes: Tensor, threshold: float) -> None:
    kernels.strom_encode(x.data_ptr(), codes.data_ptr(), threshold, x.numel(), torch.get_num_threads())
