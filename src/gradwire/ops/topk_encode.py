"""The k elements of largest magnitude, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._topk import check_sparse, select, write_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["topk_encode"]


def _check(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    check_vector("topk_encode.x", x, torch.float32, x)
    check_sparse("topk_encode", x, values, indices, counts)


@operation("topk_encode(Tensor x, Tensor(a!) values, Tensor(b!) indices, Tensor(c!) counts) -> ()", _check)
def topk_encode(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    """Write the k largest magnitudes of x and where they are: exactly k, of equal ones those of lowest index.

    Magnitudes are compared by their bits without the sign, so a NaN is larger than infinity and is sent first.

    Args:
        x: float32, n elements; not changed.
        values: float32, k <= n elements: the chosen ones, in order of their index.
        indices: int16, k elements: the low 16 bits of each index.
        counts: int32, ceil(n / 65536): how many of the chosen ones lie in each segment of 65536 elements.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> values, counts = torch.empty(2), torch.empty(1, dtype=torch.int32)
    >>> indices = torch.empty(2, dtype=torch.int16)
    >>> topk_encode(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0]), values, indices, counts)
    >>> values.tolist(), indices.tolist(), counts.tolist()
    ([-5.0, 4.0], [1, 4], [2])

    Source: A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    """
    chosen = select(x, values.numel())
    values.copy_(x[chosen])
    write_places(chosen, indices, counts)


@topk_encode.kernel("CPU")
def _cpu(x: Tensor, values: Tensor, indices: Tensor, counts: Tensor) -> None:
    addresses = x.data_ptr(), values.data_ptr(), indices.data_ptr(), counts.data_ptr()
    kernels.topk_encode(*addresses, values.numel(), x.numel(), torch.get_num_threads())
