"""Adds the level of each element's bucket."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["bucket_add_decoded"]


def _check(codes: Tensor, levels: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("bucket_add_decoded.out", out, torch.float32, out)
    check_rows("bucket_add_decoded.codes", codes, torch.uint8, out, out.numel())
    count = levels.size(1) if levels.dim() == 2 else 0
    check_rows("bucket_add_decoded.levels", levels, torch.float32, out, count)
    require(1 <= count <= 256, "bucket_add_decoded.levels", "1 to 256 for each rank", count)
    require(levels.size(0) == codes.size(0), "bucket_add_decoded.levels", "a row for each of codes", levels.size(0))


@operation("bucket_add_decoded(Tensor codes, Tensor levels, Tensor(a!) out, float scale) -> ()", _check)
def bucket_add_decoded(codes: Tensor, levels: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * levels[code]; a code beyond them is the last.

    Args:
        codes: uint8, (W, n), rows contiguous, as ``bucket_encode`` writes them.
        levels: float32, (W, 1 to 256), rows contiguous.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(3)
    >>> bucket_add_decoded(torch.tensor([[0, 1, 9]], dtype=torch.uint8), torch.tensor([[1.0, -4.0]]), out, 0.5)
    >>> out.tolist()
    [0.5, -2.0, -2.0]
    """
    for row, of_rank in zip(codes, levels, strict=True):
        out += (of_rank * float32(scale)).index_select(0, row.int().clamp_(max=of_rank.numel() - 1))


@bucket_add_decoded.kernel("CPU")
def _cpu(codes: Tensor, levels: Tensor, out: Tensor, scale: float) -> None:
    rows = codes.data_ptr(), codes.size(0), codes.stride(0)
    tables = levels.data_ptr(), 4 * levels.stride(0), levels.size(1)
    kernels.bucket_add_decoded(*rows, *tables, out.data_ptr(), scale, out.numel(), torch.get_num_threads())
