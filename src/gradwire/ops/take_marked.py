"""The marked elements, side by side, and where they were."""

import torch
from torch import Tensor

from gradwire.ops._bits import unpack_bits
from gradwire.ops._checks import check_vector
from gradwire.ops._marks import check_marks
from gradwire.ops._topk import write_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["take_marked"]


def _check(x: Tensor, bitmap: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:
    check_vector("take_marked.x", x, torch.float32, x)
    check_marks("take_marked", bitmap, counts, x)
    check_vector("take_marked.values", values, torch.float32, x)
    check_vector("take_marked.indices", indices, torch.int16, x, values.numel())


@operation("take_marked(Tensor x, Tensor bitmap, Tensor counts, Tensor(a!) values, Tensor(b!) indices) -> ()", _check)
def take_marked(x: Tensor, bitmap: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:
    """Write the values of the marked elements, and the low 16 bits of their indices.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8), as ``mark_beyond`` writes it.
        counts: int32, ceil(n / 65536), as ``mark_beyond`` writes them with it.
        values: float32, as many as the counts add up to.
        indices: int16, as many.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> bitmap, counts = torch.tensor([6], dtype=torch.uint8), torch.tensor([2], dtype=torch.int32)
    >>> values, indices = torch.empty(2), torch.empty(2, dtype=torch.int16)
    >>> take_marked(torch.tensor([1.0, -3.0, 2.0, 0.0]), bitmap, counts, values, indices)
    >>> values.tolist(), indices.tolist()
    ([-3.0, 2.0], [1, 2])
    """
    places = unpack_bits(bitmap, x.numel()).nonzero().view(-1)
    values.copy_(x[places])
    write_places(places, indices, torch.empty_like(counts))


@take_marked.kernel("CPU")
def _cpu(x: Tensor, bitmap: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:
    inputs = x.data_ptr(), bitmap.data_ptr(), counts.data_ptr()
    outputs = values.data_ptr(), indices.data_ptr()
    kernels.take_marked(*inputs, *outputs, values.numel(), x.numel(), torch.get_num_threads())
