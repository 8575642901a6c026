"""QSGD codes of a tensor, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._qsgd import check_codes, check_levels, check_parameters, norms_of, pack_levels, quantise, top_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["qsgd_encode"]


def _check(
    x: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    check_parameters("qsgd_encode", bits, block, norm)
    check_levels("qsgd_encode", bits, levels, grid)
    check_vector("qsgd_encode.x", x, torch.float32, x)
    check_codes("qsgd_encode", x, norms, codes, bits, block)


@operation(
    "qsgd_encode(Tensor x, Tensor(a!) norms, Tensor(b!) codes, int bits, int block, str norm, int key, int step,"
    " int levels=0, str grid='uniform') -> ()",
    _check,
)
def qsgd_encode(
    x: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    """Round each element at random to a level of its block, so that it is right on average.

        q = sign(x) * min(floor(|x| * s / N + r), s),    decoded = q * N / s

    or, on the grid "powers", to one of its neighbours among 0 and 2**(t - s), t = 1 .. s, decoded = 2**(|q| - s) * N.

    r = (u + 0.5) / 2**16 with u the 16 bits that ``philox`` gives element i: half i % 8 of counter i // 8. A block
    whose norm N is below 2**-120 becomes zeros; one that holds an infinity or a NaN decodes to NaN.

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block); the norm of each block.
        codes: uint8, ceil(n * bits / 8); element i in bits i * bits .. of the stream, lowest first, two's complement.
        bits: 2 to 8; fewer mean fewer bytes and a larger variance.
        block: elements that share a norm, a multiple of 16 from 16 to 65536; smaller means less variance, 4 bytes each.
        norm: "linf", the largest magnitude, or "l2", the length: "linf" has far less variance at few bits.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks whose errors must be independent.
        step: of the stream; a new one for every call.
        levels: s, from 1 to 2**(bits - 1) - 1; 0 means all of these.
        grid: "uniform" or "powers".

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> norms, codes = torch.empty(1), torch.empty(2, dtype=torch.uint8)
    >>> qsgd_encode(torch.tensor([7.0, -7.0, 0.0]), norms, codes, bits=4, block=16, norm="linf", key=1, step=0)
    >>> norms.item(), bytes(codes.tolist()).hex()
    (7.0, '9700')

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    norms.copy_(norms_of(x, block, norm))
    pack_levels(quantise(x, norms, top_of(bits, levels), block, key, step, grid), bits, codes)


@qsgd_encode.kernel("CPU")
def _cpu(
    x: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    addresses = x.data_ptr(), norms.data_ptr(), codes.data_ptr()
    form = top_of(bits, levels), grid == "powers"
    kernels.qsgd_encode(*addresses, bits, block, norm == "l2", key, step, *form, x.numel(), torch.get_num_threads())
