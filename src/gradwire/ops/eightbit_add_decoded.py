"""Adds the decoded 8-bit payloads of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._eightbit import KINDS, check_parameters, codebook, count, dequantise
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["eightbit_add_decoded"]


def _check(scales: Tensor, codes: Tensor, out: Tensor, kind: str, block: int, scale: float) -> None:  # noqa: ARG001
    check_parameters("eightbit_add_decoded", kind, block)
    check_vector("eightbit_add_decoded.out", out, torch.float32, out)
    check_rows("eightbit_add_decoded.scales", scales, torch.float32, out, count(out.numel(), block))
    check_rows("eightbit_add_decoded.codes", codes, torch.uint8, out, out.numel())
    ranks = codes.size(0)
    require(scales.size(0) == ranks, "eightbit_add_decoded.scales", f"{ranks} rows, as codes", scales.size(0))


@operation(
    "eightbit_add_decoded(Tensor scales, Tensor codes, Tensor(a!) out, str kind, int block, float scale) -> ()", _check
)
def eightbit_add_decoded(scales: Tensor, codes: Tensor, out: Tensor, kind: str, block: int, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * (N / F)) * value.

    Args:
        scales: float32, (W, ceil(n / block)) with contiguous rows, or (W, 1) for a block of 0: N of each block.
        codes: uint8, (W, n) with contiguous rows. Any bytes are safe.
        out: float32, n elements.
        kind: "linear", "dynamic", "e4m3" or "e5m2", as encoded.
        block: a multiple of 16 from 16 to 65536, or 0, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out, codes = torch.zeros(3), torch.tensor([[0x7E, 0xF6, 0x00]], dtype=torch.uint8)
    >>> eightbit_add_decoded(torch.tensor([[2.0]]), codes, out, "e4m3", 16, 0.5)
    >>> out.tolist()
    [1.0, -0.5, 0.0]

    Source: as ``eightbit_encode``.
    """
    for row_scales, row_codes in zip(scales, codes, strict=True):
        out += dequantise(row_scales, row_codes, kind, block, float32(scale))


@eightbit_add_decoded.kernel("CPU")
def _cpu(scales: Tensor, codes: Tensor, out: Tensor, kind: str, block: int, scale: float) -> None:
    scale_rows = scales.data_ptr(), scales.stride(0) * scales.element_size()
    code_rows = codes.data_ptr(), codes.stride(0)
    target = out.data_ptr(), codebook(kind, out.device).data_ptr()
    ranks, n, threads = codes.size(0), out.numel(), torch.get_num_threads()
    kernels.eightbit_add_decoded(*scale_rows, *code_rows, ranks, *target, KINDS.index(kind), block, scale, n, threads)
