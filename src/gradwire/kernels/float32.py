"""Numbers as kernels see them."""

import ctypes

__all__ = ["float32"]


def float32(value: float) -> float:
    """Round ``value`` to float32, as the kernels see it."""
    return ctypes.c_float(value).value
