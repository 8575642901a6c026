"""Compaction of the kept elements of a tensor: each part is counted, and then writes at its own offset.

A part is the work of one program. Counts are added up on the device, by one program for each tensor; nothing waits for
them.
"""

import triton
import triton.language as tl

from gradwire.kernels.triton.kernel_launch import BLOCK

__all__ = ["PART", "PROGRAMS", "STEP", "rank"]

PART = BLOCK

PROGRAMS, STEP = 4, 512
"""Programs that share the values of a segment, and how many each takes at once: at a ratio of 0.01 a segment holds 655.
"""


@triton.jit
def rank(kept, AXIS: tl.constexpr = 0):
    """The number of kept elements in front of each, within this part."""
    one = kept.to(tl.int32)
    return tl.cumsum(one, AXIS) - one
