"""3LC codes of a tensor, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._three_lc import check_payload, encode, scales_of, ternary
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["three_lc_encode"]


def _check(
    x: Tensor, used: Tensor, scales: Tensor, lengths: Tensor, stream: Tensor, block: int, sparsity: float
) -> None:
    check_vector("three_lc_encode.x", x, torch.float32, x)
    check_payload("three_lc_encode", x, used, scales, lengths, stream, block, sparsity)


@operation(
    "three_lc_encode(Tensor x, Tensor(a!) used, Tensor(b!) scales, Tensor(c!) lengths, Tensor(d!) stream, int block,"
    " float sparsity) -> ()",
    _check,
)
def three_lc_encode(
    x: Tensor, used: Tensor, scales: Tensor, lengths: Tensor, stream: Tensor, block: int, sparsity: float
) -> None:
    """Round each element of a block to -M, 0 or M, M = sparsity * max|x|: five elements a byte, runs of zeros in one.

    Args:
        x: float32, n elements; not changed.
        used: int32, one element: how many bytes of the stream were written.
        scales: float32, ceil(n / block): M. Below 2**-120 it is zero; one that is not finite decodes to NaN.
        lengths: int16, ceil(n / block): how many bytes each block takes.
        stream: uint8, ceil(block / 5) for each block: the bytes of the blocks side by side, then zeros.
        block: a multiple of 16 from 16 to 65536.
        sparsity: in [1, 2), rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> used, scales = torch.empty(1, dtype=torch.int32), torch.empty(1)
    >>> lengths, stream = torch.empty(1, dtype=torch.int16), torch.empty(1, dtype=torch.uint8)
    >>> three_lc_encode(torch.tensor([4.0, -2.0, 2.1, -4.0, 0.1]), used, scales, lengths, stream, 16, 1.0)
    >>> scales.item(), stream[: used.item()].tolist()
    (4.0, [208])

    Source: H. Lim, D. G. Andersen, M. Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed
    Machine Learning", MLSys 2019.
    """
    scales.copy_(scales_of(x, block, sparsity))
    encode(ternary(x, scales, block), scales, x.numel(), used, lengths, stream)


@three_lc_encode.kernel("CPU")
def _cpu(x: Tensor, used: Tensor, scales: Tensor, lengths: Tensor, stream: Tensor, block: int, sparsity: float) -> None:
    addresses = x.data_ptr(), scales.data_ptr(), lengths.data_ptr(), stream.data_ptr()
    used.fill_(kernels.three_lc_encode(*addresses, block, sparsity, x.numel(), torch.get_num_threads()))
