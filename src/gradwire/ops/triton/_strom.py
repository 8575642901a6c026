"""What the two encoders of what is beyond a threshold share."""

import triton
import triton.language as tl

from gradwire.ops.triton._codes import pack

__all__ = ["store_beyond"]


@triton.jit
def store_beyond(x: tl.tensor, threshold: tl.tensor, codes: tl.tensor, byte: tl.tensor, size: tl.tensor) -> None:
    """Write the codes of a tile: 11 if x > t, 10 if x < -t, else 00; x is 0 beyond the last element."""
    code = tl.where(x > threshold, 3, tl.where(x < -threshold, 2, 0))
    tl.store(codes + byte, pack(code, 2), mask=byte < size)
