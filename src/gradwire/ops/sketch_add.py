"""A vector into a count sketch."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._sketch import check_table, places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["sketch_add"]


def _check(x: Tensor, table: Tensor, rows: int, key: int, step: int) -> None:  # noqa: ARG001
    check_vector("sketch_add.x", x, torch.float32, x)
    check_table("sketch_add", x, table, rows)


@operation("sketch_add(Tensor x, Tensor(a!) table, int rows, int key, int step) -> ()", _check)
def sketch_add(x: Tensor, table: Tensor, rows: int, key: int, step: int) -> None:
    """Add each element to one column of each row, with a sign: T[a, h_a(j)] += s_a(j) x[j].

    Column and sign are random words of (key, step), see ``ops._sketch``; elements are added in order. The sketch is
    linear: those of two vectors add up to the sketch of their sum.

    Args:
        x: float32, n elements; not changed.
        table: float32, rows * C elements, C a multiple of 16.
        rows: 1, 3, 5 or 7.
        key: which hash functions, a signed 64-bit integer.
        step: which of their family, a signed 64-bit integer.

    Raises:
        ConfigError: a tensor or a number is not of this form.

    >>> table = torch.zeros(32)
    >>> sketch_add(torch.tensor([3.0, -4.0]), table, rows=1, key=0, step=0)
    >>> sorted(table[table != 0].abs().tolist())
    [3.0, 4.0]

    Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.
    """
    columns = table.numel() // rows
    column, sign = places(x.numel(), columns, rows, key, step, x.device)
    for row, where, signs in zip(table.view(rows, columns), column, sign, strict=True):
        row.index_add_(0, where, x * signs)


@sketch_add.kernel("CPU")
def _cpu(x: Tensor, table: Tensor, rows: int, key: int, step: int) -> None:
    kernels.sketch_add(
        x.data_ptr(), table.data_ptr(), rows, table.numel() // rows, key, step, x.numel(), torch.get_num_threads()
    )
