"""Levels of a tensor whose norm is known."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._qsgd import check_whole, pack_levels, quantise, whole
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["round_encode"]


def _check(x: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, key: int, step: int) -> None:  # noqa: ARG001
    check_vector("round_encode.x", x, torch.float32, x)
    check_whole("round_encode", x, norm, codes, bits, levels)


@operation(
    "round_encode(Tensor x, Tensor norm, Tensor(a!) codes, int bits, int levels, int key, int step) -> ()", _check
)
def round_encode(x: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, key: int, step: int) -> None:
    """Round each element at random to a level, as ``qsgd_encode`` does, with one norm N that was found before.

        q = sign(x) * min(floor(|x| * s / N + r), s),    decoded = q * N / s

    What is larger than N is cut off there. A norm that is zero or not finite gives codes of zero.

    Args:
        x: float32, n elements; not changed.
        norm: float32, one element.
        codes: uint8, ceil(n * bits / 8), as ``qsgd_encode`` writes them.
        bits: 2 to 8.
        levels: s, from 1 to 2**(bits - 1) - 1.
        key: the stream of random numbers, a signed 64-bit integer.
        step: of the stream; a new one for every call.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> round_encode(torch.tensor([2.0, -9.0, 0.0]), torch.tensor([2.0]), codes, bits=2, levels=1, key=1, step=0)
    >>> f"{codes.item():06b}"
    '001101'

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    pack_levels(quantise(x, norm, levels, whole(x.numel()), key, step), bits, codes)


@round_encode.kernel("CPU")
def _cpu(x: Tensor, norm: Tensor, codes: Tensor, bits: int, levels: int, key: int, step: int) -> None:
    addresses = x.data_ptr(), norm.data_ptr(), codes.data_ptr()
    kernels.round_encode(*addresses, bits, levels, key, step, x.numel(), torch.get_num_threads())
