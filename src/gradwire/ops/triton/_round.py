"""Random rounding with one norm: a program takes groups of 8 elements, each with its own Philox counter."""

import triton
import triton.language as tl

from gradwire.ops.triton._launch import BLOCK
from gradwire.ops.triton._qsgd import encode

__all__ = ["GROUPS", "round_tile"]

GROUPS = BLOCK // 8


@triton.jit
def round_tile(
    x: tl.tensor,
    norm: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    key: tl.tensor,
    step: tl.tensor,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Write the codes of this program's tile; its elements' indices, values, levels, and the norm, (1,)."""
    group = (tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS))[None, :]
    i = group[:, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    values = tl.load(x + i, mask=i < n, other=0.0)
    given = tl.load(norm + tl.arange(0, 1))
    q = encode(values, group, given, codes, size, key, step, BITS, TOP)
    return i, values, q, given
