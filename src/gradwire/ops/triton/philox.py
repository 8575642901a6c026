"""Random words that depend on a key, a step and a position alone."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops.triton._launch import BLOCK, launch
from gradwire.ops.triton._philox import philox_table

__all__ = ["philox"]


@triton.jit(do_not_specialize=["key", "step", "offset"])
def _kernel(
    out: tl.tensor, n: tl.tensor, key: tl.int64, step: tl.int64, offset: tl.int64, COUNTERS: tl.constexpr
) -> None:
    counter = tl.program_id(0).to(tl.int64) * COUNTERS + tl.arange(0, COUNTERS)
    i = counter[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out + i, philox_table(counter + offset, key, step).to(tl.int32, bitcast=True), mask=i < n)


def philox(out: Tensor, key: int, step: int, offset: int = 0) -> None:
    """As the operation."""
    n = out.numel()
    launch(_kernel, (triton.cdiv(n, BLOCK),), out, n, key, step, offset, COUNTERS=BLOCK // 4)
