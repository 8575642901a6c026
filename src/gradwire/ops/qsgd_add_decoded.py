"""Adds the decoded QSGD payloads of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._qsgd import check_levels, check_parameters, spread, steps_of, top_of, unpack_levels, values_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["qsgd_add_decoded"]

_LONGEST = 2**48
"""A decoder does not keep a block in its cache, so the norm may be that of a whole tensor."""


def _check(
    norms: Tensor,
    codes: Tensor,
    out: Tensor,
    bits: int,
    block: int,
    scale: float,  # noqa: ARG001
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    n = out.numel()
    check_parameters("qsgd_add_decoded", bits, block, most=_LONGEST)
    check_levels("qsgd_add_decoded", bits, levels, grid)
    check_vector("qsgd_add_decoded.out", out, torch.float32, out)
    check_rows("qsgd_add_decoded.norms", norms, torch.float32, out, -(-n // block))
    check_rows("qsgd_add_decoded.codes", codes, torch.uint8, out, -(-n * bits // 8))
    require(norms.size(0) == codes.size(0), "qsgd_add_decoded.norms", f"{codes.size(0)} rows, as codes", norms.size(0))


@operation(
    "qsgd_add_decoded(Tensor norms, Tensor codes, Tensor(a!) out, int bits, int block, float scale, int levels=0,"
    " str grid='uniform') -> ()",
    _check,
)
def qsgd_add_decoded(
    norms: Tensor,
    codes: Tensor,
    out: Tensor,
    bits: int,
    block: int,
    scale: float,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * (N / s)) * q.

    Args:
        norms: float32, (W, ceil(n / block)) with contiguous rows: the norms N that ``qsgd_encode`` wrote on each rank.
        codes: uint8, (W, ceil(n * bits / 8)) with contiguous rows: the levels q. Any bytes are safe.
        out: float32, n elements.
        bits: 2 to 8, as encoded.
        block: a multiple of 16, as encoded; of the whole tensor, n rounded up.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.
        levels: s, as encoded.
        grid: "uniform", or "powers", where a level is 2**(|q| - s) * N.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out = torch.zeros(3)
    >>> codes = torch.tensor([[0x97, 0x00]], dtype=torch.uint8)
    >>> qsgd_add_decoded(torch.tensor([[7.0]]), codes, out, bits=4, block=16, scale=0.5)
    >>> out.tolist()
    [3.5, -3.5, 0.0]

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    top = top_of(bits, levels)
    for row_norms, row_codes in zip(norms, codes, strict=True):
        scaled = spread(steps_of(row_norms, top, grid) * float32(scale), out.numel(), block)
        out += scaled * values_of(unpack_levels(row_codes, bits, out.numel()), top, grid)


@qsgd_add_decoded.kernel("CPU")
def _cpu(
    norms: Tensor,
    codes: Tensor,
    out: Tensor,
    bits: int,
    block: int,
    scale: float,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    norm_rows = norms.data_ptr(), norms.stride(0) * norms.element_size()
    code_rows = codes.data_ptr(), codes.stride(0)
    ranks, n, threads = codes.size(0), out.numel(), torch.get_num_threads()
    form = bits, block, scale, top_of(bits, levels), grid == "powers"
    kernels.qsgd_add_decoded(*norm_rows, *code_rows, ranks, out.data_ptr(), *form, n, threads)
