"""Levels of a compensated gradient whose norm is known; it becomes the new residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._qsgd import check_whole, pack_levels, quantise, spread, steps_of, whole
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["round_keep"]


def _check(
    residual: Tensor,
    norm: Tensor,
    codes: Tensor,
    bits: int,
    levels: int,
    shrink: float,  # noqa: ARG001
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
) -> None:
    check_vector("round_keep.residual", residual, torch.float32, residual)
    check_whole("round_keep", residual, norm, codes, bits, levels)


@operation(
    "round_keep(Tensor(a!) residual, Tensor norm, Tensor(b!) codes, int bits, int levels, float shrink, int key,"
    " int step) -> ()",
    _check,
)
def round_keep(
    residual: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, shrink: float, key: int, step: int
) -> None:
    """Encode as ``round_encode`` does and keep what the codes do not say: the second of two passes.

        residual = residual - shrink * (q * N / s)

    Args:
        residual: float32, n elements: what is encoded, and then what is left of it.
        norm: float32, one element. One that is not finite leaves NaN.
        codes: uint8, ceil(n * bits / 8).
        bits: 2 to 8.
        levels: s, from 1 to 2**(bits - 1) - 1.
        shrink: what the decoder will multiply by; rounded to float32.
        key: the stream of random numbers, a signed 64-bit integer.
        step: of the stream.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> x, codes = torch.tensor([2.0, -9.0, 0.0]), torch.empty(1, dtype=torch.uint8)
    >>> round_keep(x, torch.tensor([2.0]), codes, bits=2, levels=1, shrink=1.0, key=1, step=0)
    >>> x.tolist()
    [0.0, -7.0, 0.0]

    Source: as ``round_encode``.
    """
    n = residual.numel()
    q = quantise(residual, norm, levels, whole(n), key, step)
    pack_levels(q, bits, codes)
    residual += spread(-(steps_of(norm, levels) * float32(shrink)), n, whole(n)) * q


@round_keep.kernel("CPU")
def _cpu(
    residual: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, shrink: float, key: int, step: int
) -> None:
    addresses = residual.data_ptr(), norm.data_ptr(), codes.data_ptr()
    kernels.round_keep(*addresses, bits, levels, shrink, key, step, residual.numel(), torch.get_num_threads())
