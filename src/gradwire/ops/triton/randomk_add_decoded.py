"""The sum of random-k payloads."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._randomk import read_seed
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._randomk import chosen
from gradwire.ops.triton._tile import elements

__all__ = ["randomk_add_decoded"]


@triton.jit
def _kernel(
    out: tl.tensor,
    values: tl.tensor,
    seed: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    units: tl.tensor,
    run: tl.tensor,
    scale: tl.float32,
    BLOCK: tl.constexpr,
) -> None:
    j = elements(BLOCK)
    first, _ = chosen(j // run, tl.load(seed), units, count // run, run)
    place = first + j % run
    inside = (j < count) & (place < n)
    scaled = tl.load(values + j, mask=inside) * scale
    tl.store(out + place, tl.load(out + place, mask=inside) + scaled, mask=inside)


def randomk_add_decoded(values: Tensor, header: Tensor, out: Tensor, run: int, scale: float) -> None:
    """As the operation: of one rank no two values meet, and one launch for each keeps the order of the ranks."""
    n, count = out.numel(), values.size(1)
    sizes = n, count, triton.cdiv(n, run), run
    for row, head in zip(values, header, strict=True):
        launch(_kernel, (triton.cdiv(count, BLOCK),), out, row, read_seed(head), *sizes, float32(scale), BLOCK=BLOCK)
