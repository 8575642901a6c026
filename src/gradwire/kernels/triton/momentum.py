"""Running mean of gradients."""

import triton
import triton.language as tl

from gradwire.kernels.triton.status import flag_nonfinite

__all__ = ["advance"]


@triton.jit
def advance(grad, momentum, status, i, n, beta: tl.float32, rest: tl.float32):
    """Update the running mean with the gradients at ``i``; with a status the old mean goes to ``grad``."""
    inside = i < n
    old = tl.load(momentum + i, mask=inside, other=0.0)
    now = old * beta + tl.load(grad + i, mask=inside, other=0.0) * rest
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(now, status)
    tl.store(momentum + i, now, mask=inside)
    return now
