"""Adds the random-k payloads of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._randomk import HEADER, choose, read_seed
from gradwire.ops._topk import add_inside
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["randomk_add_decoded"]


def _check(values: Tensor, header: Tensor, out: Tensor, run: int, scale: float) -> None:  # noqa: ARG001
    require(is_int(run, 1), "randomk_add_decoded.run", "an integer >= 1", run)
    check_vector("randomk_add_decoded.out", out, torch.float32, out)
    count = values.size(1) if values.dim() == 2 else 0
    check_rows("randomk_add_decoded.values", values, torch.float32, out, count)
    whole = count % run == 0 and count < out.numel() + run
    require(whole, "randomk_add_decoded.values", f"whole runs of {run}, at most one for each of out", count)
    check_rows("randomk_add_decoded.header", header, torch.float32, out, HEADER)
    require(header.size(0) == values.size(0), "randomk_add_decoded.header", "as many rows as values", header.size(0))


@operation("randomk_add_decoded(Tensor values, Tensor header, Tensor(a!) out, int run, float scale) -> ()", _check)
def randomk_add_decoded(values: Tensor, header: Tensor, out: Tensor, run: int, scale: float) -> None:
    """Add each payload where its seed says: out[place] = out[place] + scale * value.

    The payload may be the sum of those of many ranks with one seed: the header's first number then counts them.

    Args:
        values: float32, (W, k * run) with contiguous rows, as ``randomk_encode`` writes them.
        header: float32, (W, 5) with contiguous rows.
        out: float32, n elements.
        run: elements that are chosen together.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out = torch.zeros(8)
    >>> randomk_add_decoded(torch.tensor([[3.0, 5.0]]), torch.tensor([[2.0, 4, 2, 0, 0]]), out, run=1, scale=0.5)
    >>> out.tolist()
    [0.0, 0.0, 0.0, 1.5, 0.0, 2.5, 0.0, 0.0]

    Source: as ``randomk_encode``.
    """
    for row, head in zip(values, header, strict=True):
        first, _ = choose(read_seed(head), out.numel(), row.numel() // run, run)
        where = (first.unsqueeze(1) + torch.arange(run, device=out.device)).view(-1)
        add_inside(out, where, row * float32(scale))


@randomk_add_decoded.kernel("CPU")
def _cpu(values: Tensor, header: Tensor, out: Tensor, run: int, scale: float) -> None:
    for row, head in zip(values, header, strict=True):
        seed, k, threads = int(read_seed(head)), row.numel() // run, torch.get_num_threads()
        kernels.randomk_add_decoded(row.data_ptr(), out.data_ptr(), seed, k, run, scale, out.numel(), threads)
