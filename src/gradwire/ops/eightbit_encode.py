"""8-bit codes of a tensor with a scale for each block, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._eightbit import KINDS, check_codes, check_parameters, codebook, encode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["eightbit_encode"]


def _check(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    check_parameters("eightbit_encode", kind, block)
    check_vector("eightbit_encode.x", x, torch.float32, x)
    check_codes("eightbit_encode", x, scales, codes, block)


@operation("eightbit_encode(Tensor x, Tensor(a!) scales, Tensor(b!) codes, str kind, int block) -> ()", _check)
def eightbit_encode(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    """Send for each element the nearest of 256 values that span its block.

        code = nearest value to F * x * (1 / N),    decoded = value * (N / F)

    N is the largest magnitude of the block and F the codebook's largest value; ties go to the even integer or float,
    and in "dynamic" away from zero. A block whose N is below 2**-120 becomes zeros; one that holds an infinity or a NaN
    decodes to NaN.

    Args:
        x: float32, n elements; not changed.
        scales: float32, N of each block: ceil(n / block), or one for a block of 0.
        codes: uint8, n.
        kind: "linear", the integers from -127 to 127; "dynamic", bitsandbytes' map of seven decades; "e4m3" or "e5m2",
            floats of 8 bits. Linear errs least where a block's elements are of one magnitude, the others where they
            span several.
        block: elements that share a scale, a multiple of 16 from 16 to 65536; 0: all of them.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> scales, codes = torch.empty(1), torch.empty(3, dtype=torch.uint8)
    >>> eightbit_encode(torch.tensor([2.0, -1.0, 0.0]), scales, codes, "e4m3", block=16)
    >>> scales.item(), bytes(codes.tolist()).hex()
    (2.0, '7ef600')

    Source: T. Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016; P. Micikevicius et al.,
    "FP8 Formats for Deep Learning", 2022.
    """
    encode(x, scales, codes, kind, block)


@eightbit_encode.kernel("CPU")
def _cpu(x: Tensor, scales: Tensor, codes: Tensor, kind: str, block: int) -> None:
    addresses = x.data_ptr(), scales.data_ptr(), codes.data_ptr(), codebook(kind, x.device).data_ptr()
    kernels.eightbit_encode(*addresses, KINDS.index(kind), block, x.numel(), torch.get_num_threads())
