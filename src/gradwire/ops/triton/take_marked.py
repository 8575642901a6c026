"""The marked elements, side by side, and where they were."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._compact import PART, before, bits_of, rank
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._marks import count_marks
from gradwire.ops.triton._tile import elements

__all__ = ["take_marked"]


@triton.jit
def _kernel(
    x: tl.tensor,
    bitmap: tl.tensor,
    starts: tl.tensor,
    values: tl.tensor,
    indices: tl.tensor,
    size: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    PART: tl.constexpr,
) -> None:
    i, bits = elements(PART), bits_of(bitmap, size, n, PART)
    place = tl.load(starts + tl.program_id(0)) + rank(bits)
    taken = bits & (place < k)
    tl.store(values + place, tl.load(x + i, mask=taken), mask=taken)
    tl.store(indices + place, i.to(tl.int16), mask=taken)


def take_marked(x: Tensor, bitmap: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:  # noqa: ARG001
    """As the operation. The counts are of whole segments: those of parts are found again, in a bit for each element."""
    named, n = count_marks(bitmap, x.numel()), x.numel()
    sizes = bitmap.numel(), n, values.numel()
    launch(_kernel, (named.numel(),), x, bitmap, before(named), values, indices, *sizes, PART=PART)
