"""Status word of the fused operations."""

import triton
import triton.language as tl

__all__ = ["compensate", "flag_nonfinite"]

_EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def flag_nonfinite(x, status):
    """Set bit 0 of ``status`` if one of ``x`` is infinite or not a number: its exponent is all ones."""
    largest = tl.max(x.to(tl.int32, bitcast=True) & _EXPONENT)
    tl.atomic_or(status, 1, mask=largest == _EXPONENT, sem="relaxed")


@triton.jit
def compensate(grad, residual, status, i, n):
    """Compute the sums at ``i``, 0 from n on; with a status the old residual goes to ``grad``. Without a residual they
    are the gradient.
    """
    inside = i < n
    x = tl.load(grad + i, mask=inside, other=0.0)
    if residual is not None:
        old = tl.load(residual + i, mask=inside, other=0.0)
        x = old + x
        if status is not None:
            tl.store(grad + i, old, mask=inside)
            flag_nonfinite(x, status)
    return x
