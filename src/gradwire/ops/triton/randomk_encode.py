"""The elements that a seed chooses."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops._checks import float32
from gradwire.ops._randomk import write_seed
from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._randomk import chosen
from gradwire.ops.triton._tile import elements

__all__ = ["randomk_encode"]


@triton.jit(do_not_specialize=["seed"])
def _kernel(
    x: tl.tensor,
    values: tl.tensor,
    seed: tl.int64,
    n: tl.tensor,
    count: tl.tensor,
    units: tl.tensor,
    run: tl.tensor,
    scale: tl.float32,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    j = elements(BLOCK)
    first, size = chosen(j // run, seed, units, count // run, run)
    place = first + j % run
    value = tl.load(x + place, mask=(j < count) & (place < n), other=0.0) * scale
    if SCALED:
        value *= size.to(tl.float32)
    tl.store(values + j, tl.where(place < n, value, 0.0), mask=j < count)


def randomk_encode(x: Tensor, values: Tensor, header: Tensor, seed: int, run: int, scaled: bool, scale: float) -> None:
    """As the operation."""
    write_seed(seed, header)
    n, count = x.numel(), values.numel()
    form = {"SCALED": scaled, "BLOCK": BLOCK}
    sizes = n, count, triton.cdiv(n, run), run
    launch(_kernel, (triton.cdiv(count, BLOCK),), x, values, seed, *sizes, float32(scale), **form)
