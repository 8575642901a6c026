"""A vector out of its count sketch, nearly."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._sketch import check_table, places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sketch_estimate"]


def _check(table: Tensor, out: Tensor, rows: int, key: int, step: int) -> None:  # noqa: ARG001
    check_vector("sketch_estimate.out", out, torch.float32, out)
    check_table("sketch_estimate", out, table, rows)


@operation("sketch_estimate(Tensor table, Tensor(a!) out, int rows, int key, int step) -> ()", _check)
def sketch_estimate(table: Tensor, out: Tensor, rows: int, key: int, step: int) -> None:
    """Estimate each element of what was added: out[j] = median over a of s_a(j) T[a, h_a(j)].

    Args:
        table: float32, rows * C elements, as ``sketch_add`` left it.
        out: float32, n elements, overwritten.
        rows: as for ``sketch_add``, and so the next two.
        key: which hash functions.
        step: which of their family.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> from gradwire.ops import sketch_add
    >>> table, out = torch.zeros(3 * 16), torch.empty(4)
    >>> sketch_add(torch.tensor([1.0, 0.0, -5.0, 2.0]), table, rows=3, key=1, step=2)
    >>> sketch_estimate(table, out, rows=3, key=1, step=2)
    >>> out.tolist()
    [1.0, 0.0, -5.0, 2.0]

    Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """
    columns = table.numel() // rows
    column, sign = places(out.numel(), columns, rows, key, step, out.device)
    seen = table.view(rows, columns).gather(1, column) * sign if out.numel() else sign
    out.copy_(_median(list(seen.unbind(0))))


@sketch_estimate.kernel("CPU")
def _cpu(table: Tensor, out: Tensor, rows: int, key: int, step: int) -> None:
    kernels.sketch_estimate(
        table.data_ptr(), out.data_ptr(), rows, table.numel() // rows, key, step, out.numel(), torch.get_num_threads()
    )


def _median(values: list[Tensor]) -> Tensor:
    """The middle one of an odd number, by compare and swap, so that every device treats a NaN alike."""
    for last in range(len(values) - 1, len(values) // 2 - 1, -1):
        for i in range(last):
            a, b = values[i], values[i + 1]
            swap = b < a
            values[i], values[i + 1] = torch.where(swap, b, a), torch.where(swap, a, b)
    return values[len(values) // 2]
