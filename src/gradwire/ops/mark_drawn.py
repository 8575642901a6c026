"""A bit for each element that a random draw keeps."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._marks import check_marks, drawn, write_marks
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["mark_drawn"]


def _check(
    x: Tensor, bitmap: Tensor, counts: Tensor, whole: Tensor, whole_counts: Tensor,
    s: float, key: int, step: int,  # noqa: ARG001
) -> None:  # fmt: skip
    check_vector("mark_drawn.x", x, torch.float32, x)
    check_marks("mark_drawn", bitmap, counts, x)
    check_vector("mark_drawn.whole", whole, torch.uint8, x, bitmap.numel())
    check_vector("mark_drawn.whole_counts", whole_counts, torch.int32, x, counts.numel())


@operation(
    "mark_drawn(Tensor x, Tensor(a!) bitmap, Tensor(b!) counts, Tensor(c!) whole, Tensor(d!) whole_counts, float s,"
    " int key, int step) -> ()",
    _check,
)
def mark_drawn(
    x: Tensor, bitmap: Tensor, counts: Tensor, whole: Tensor, whole_counts: Tensor, s: float, key: int, step: int
) -> None:
    """Mark |x| >= s in ``whole``, and each other element with probability |x| / s in ``bitmap``.

    Element i is kept where |x_i| > u s in float64, with u = (w + 2^31 + 1/2) / 2^32 for the int32 w that ``philox``
    gives at place i. So u is never 0 or 1: zeros are never kept, and the probability is exact to 2^-32.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8), as of ``mark_beyond``.
        counts: int32, ceil(n / 65536).
        whole: uint8, ceil(n / 8).
        whole_counts: int32, ceil(n / 65536).
        s: > 0, rounded to float32.
        key: of the random stream.
        step: of the random stream.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> bitmap, counts = torch.empty(1, dtype=torch.uint8), torch.empty(1, dtype=torch.int32)
    >>> whole, whole_counts = torch.empty_like(bitmap), torch.empty_like(counts)
    >>> mark_drawn(torch.tensor([1.0, -3.0, 2.0, 0.0]), bitmap, counts, whole, whole_counts, 2.0, key=1, step=0)
    >>> whole.tolist(), whole_counts.tolist(), counts.item() <= 1
    ([6], [2], True)
    """
    above, kept = drawn(x, s, key, step)
    write_marks(above, whole, whole_counts)
    write_marks(kept, bitmap, counts)


@mark_drawn.kernel("CPU")
def _cpu(
    x: Tensor, bitmap: Tensor, counts: Tensor, whole: Tensor, whole_counts: Tensor, s: float, key: int, step: int
) -> None:
    outputs = bitmap.data_ptr(), counts.data_ptr(), whole.data_ptr(), whole_counts.data_ptr()
    kernels.mark_drawn(x.data_ptr(), *outputs, s, key, step, x.numel(), torch.get_num_threads())
