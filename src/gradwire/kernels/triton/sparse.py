"""Segments of values whose number a count gives; a few programs share the values of one."""

import triton
import triton.language as tl

__all__ = ["BLOCK", "PARTS", "span"]

PARTS, BLOCK = 4, 512  # a segment holds 655 values at a ratio of 0.01: 4 programs of 512 share it


@triton.jit
def span(ends, segment):
    """The index of the first value of a segment, and the one after its last."""
    return tl.load(ends + segment - 1, mask=segment > 0, other=0), tl.load(ends + segment)
