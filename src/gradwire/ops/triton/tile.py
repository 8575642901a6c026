"""Which elements a program works on."""

import triton
import triton.language as tl

__all__ = ["elements"]


@triton.jit
def elements(BLOCK: tl.constexpr) -> tl.tensor:
    """The indices of this program's elements, in 64 bits: a gradient may have more than 2**31."""
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
