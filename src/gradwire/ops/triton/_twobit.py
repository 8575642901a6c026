"""What the two 2-bit encoders share."""

import triton
import triton.language as tl

from gradwire.ops.triton._codes import pack

__all__ = ["store_codes"]


@triton.jit
def store_codes(
    x: tl.tensor, inside: tl.tensor, threshold: tl.tensor, codes: tl.tensor, byte: tl.tensor, size: tl.tensor
) -> None:
    """Write the codes of a tile: 11 if x >= t, 10 if x <= -t, else 00; 00 beyond the last element."""
    code = tl.where(x >= threshold, 3, tl.where(x <= -threshold, 2, 0))
    tl.store(codes + byte, pack(tl.where(inside, code, 0), 2), mask=byte < size)
