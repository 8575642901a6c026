"""Signs, and the mean magnitude of each block."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._signs import check_block_signs, mean_magnitudes, pack_signs
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["scaled_sign_encode"]


def _check(x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    check_vector("scaled_sign_encode.x", x, torch.float32, x)
    check_block_signs("scaled_sign_encode", x, ("scales", scales, 1), codes, block)


@operation("scaled_sign_encode(Tensor x, Tensor(a!) scales, Tensor(b!) codes, int block) -> ()", _check)
def scaled_sign_encode(x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    """Write the sign of each element and the mean magnitude of each block: C(x) = sign(x) * mean(|x|).

    An element of zero counts as positive, a NaN as negative.

    Args:
        x: float32, n elements.
        scales: float32, ceil(n / block); a block that holds a NaN or an infinity has such a scale.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, 1 where x >= 0; the tail is 0.
        block: elements of a block, a multiple of 32 from 32 to 65536; smaller: less error, 4 bytes each.

    Raises:
        ConfigError: a tensor or the block is not of this form.

    >>> scales, codes = torch.empty(1), torch.empty(1, dtype=torch.uint8)
    >>> scaled_sign_encode(torch.tensor([-2.0, -1.0, 1.0, 3.0]), scales, codes, block=32)
    >>> scales, f"{codes.item():08b}"
    (tensor([1.7500]), '00001100')

    Source: S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", ICML 2019; by blocks, S. Zheng, Z. Huang, J. Kwok, "Communication-Efficient Distributed
    Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019.
    """
    scales.copy_(mean_magnitudes(x, block))
    pack_signs(x >= 0, codes)


@scaled_sign_encode.kernel("CPU")
def _cpu(x: Tensor, scales: Tensor, codes: Tensor, block: int) -> None:
    addresses = x.data_ptr(), scales.data_ptr(), codes.data_ptr()
    kernels.scaled_sign_encode(*addresses, block, x.numel(), torch.get_num_threads())
