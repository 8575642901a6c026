"""Adds the sparse payloads of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._topk import add_inside, places_of, segments
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sparse_add_decoded"]


def _check(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("sparse_add_decoded.out", out, torch.float32, out)
    check_rows("sparse_add_decoded.values", values, torch.float32, out, values.size(1) if values.dim() == 2 else 0)
    check_rows("sparse_add_decoded.indices", indices, torch.int16, out, values.size(1))
    check_rows("sparse_add_decoded.counts", counts, torch.int32, out, segments(out.numel()))
    ranks = values.size(0)
    for name, rows in (("indices", indices.size(0)), ("counts", counts.size(0))):
        require(rows == ranks, f"sparse_add_decoded.{name}", f"{ranks} rows, as values", rows)


@operation(
    "sparse_add_decoded(Tensor values, Tensor indices, Tensor counts, Tensor(a!) out, float scale) -> ()", _check
)
def sparse_add_decoded(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out[index] = out[index] + scale * value.

    Bytes from a peer are safe whatever they are: a negative count is 0, what the counts claim beyond the k values of
    a rank does not exist, and an index beyond ``out`` is skipped.

    Args:
        values: float32, (W, k) with contiguous rows, as ``topk_encode`` writes them on each rank.
        indices: int16, (W, k) with contiguous rows: the low 16 bits of the indices.
        counts: int32, (W, ceil(n / 65536)) with contiguous rows: how many of the k lie in each segment.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(5)
    >>> indices, counts = torch.tensor([[1, 4]], dtype=torch.int16), torch.tensor([[2]], dtype=torch.int32)
    >>> sparse_add_decoded(torch.tensor([[-5.0, 4.0]]), indices, counts, out, scale=0.5)
    >>> out.tolist()
    [0.0, -2.5, 0.0, 0.0, 2.0]

    Source: as ``topk_encode``.
    """
    for row_values, row_indices, row_counts in zip(values, indices, counts, strict=True):
        add_inside(out, places_of(row_counts, row_indices), row_values * float32(scale))


@sparse_add_decoded.kernel("CPU")
def _cpu(values: Tensor, indices: Tensor, counts: Tensor, out: Tensor, scale: float) -> None:
    rows = ((values.data_ptr(), values.stride(0) * 4), (indices.data_ptr(), indices.stride(0) * 2))
    addresses = *rows[0], *rows[1], counts.data_ptr(), counts.stride(0) * 4
    ranks, k, n, threads = values.size(0), values.size(1), out.numel(), torch.get_num_threads()
    kernels.sparse_add_decoded(*addresses, ranks, k, out.data_ptr(), scale, n, threads)
