"""Adds the decoded powers of two of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._natural import check_block, dequantise
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["natural_add_decoded"]


def _check(bases: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:  # noqa: ARG001
    check_block("natural_add_decoded", block)
    check_vector("natural_add_decoded.out", out, torch.float32, out)
    check_rows("natural_add_decoded.bases", bases, torch.uint8, out, -(-out.numel() // block))
    check_rows("natural_add_decoded.codes", codes, torch.uint8, out, out.numel())
    ranks = codes.size(0)
    require(bases.size(0) == ranks, "natural_add_decoded.bases", f"{ranks} rows, as codes", bases.size(0))


@operation("natural_add_decoded(Tensor bases, Tensor codes, Tensor(a!) out, int block, float scale) -> ()", _check)
def natural_add_decoded(bases: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * (sign 2**(base + m - 127)).

    Args:
        bases: uint8, (W, ceil(n / block)) with contiguous rows; 255 makes its block NaN.
        codes: uint8, (W, n) with contiguous rows. Any bytes are safe: an exponent beyond 254 reads as an infinity.
        out: float32, n elements.
        block: a multiple of 16 from 16 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out = torch.zeros(3)
    >>> bases, codes = torch.tensor([[1]], dtype=torch.uint8), torch.tensor([[126, 253, 0]], dtype=torch.uint8)
    >>> natural_add_decoded(bases, codes, out, 16, 0.5)
    >>> out.tolist()
    [0.5, -0.25, 0.0]

    Source: as ``natural_encode``.
    """
    for row_bases, row_codes in zip(bases, codes, strict=True):
        out += dequantise(row_bases, row_codes, block, float32(scale))


@natural_add_decoded.kernel("CPU")
def _cpu(bases: Tensor, codes: Tensor, out: Tensor, block: int, scale: float) -> None:
    rows = bases.data_ptr(), bases.stride(0), codes.data_ptr(), codes.stride(0), codes.size(0)
    kernels.natural_add_decoded(*rows, out.data_ptr(), block, scale, out.numel(), torch.get_num_threads())
