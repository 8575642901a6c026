"""Sums of numbers in memory, in one order everywhere: halves are added to each other until one number is left."""

import triton
import triton.language as tl

__all__ = ["tree_sum"]


@triton.jit
def tree_sum(values, count, size, STEP: tl.constexpr):
    """Compute the sum of the first ``count`` values as a tree of ``size`` leaves, the others being 0: (1,).

    One program does it alone, and the values are overwritten. ``size`` is a power of two, at least ``count``.
    """
    # Threads read here what other threads have written.
    tl.debug_barrier()
    half, left = size // 2, count
    while half >= 1:
        for start in range(0, half, STEP):
            i = start + tl.arange(0, STEP)
            low = tl.load(values + i, mask=(i < half) & (i < left), other=0.0)
            high = tl.load(values + half + i, mask=(i < half) & (half + i < left), other=0.0)
            tl.store(values + i, low + high, mask=(i < half) & (i < left))
        tl.debug_barrier()
        left = tl.minimum(left, half)
        half = half // 2
    return tl.load(values + tl.arange(0, 1))
