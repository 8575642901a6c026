"""What the fused operations report."""

import triton
import triton.language as tl

__all__ = ["flag_nonfinite"]

_EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def flag_nonfinite(x: tl.tensor, status: tl.tensor) -> None:
    """Set bit 0 of ``status`` where one of ``x`` is infinite or not a number: its exponent is all ones."""
    largest = tl.max(x.to(tl.int32, bitcast=True) & _EXPONENT)
    tl.atomic_or(status, 1, mask=largest == _EXPONENT, sem="relaxed")
