"""Operations that compressors are made of, each with a plain-torch reference and its kernels.

Those of one family of compressors are in its folder, as ``gradwire.compressors.ternary.ops``.
"""

from gradwire.ops.auto_threshold import auto_threshold
from gradwire.ops.native import kernel_info
from gradwire.ops.places import bitmap_decode, bitmap_encode, rice_decode, rice_encode
from gradwire.ops.shared import (
    accumulate,
    momentum_update,
    nonfinite,
    philox,
    precondition,
    precondition_update,
    swap,
)

__all__ = [
    "accumulate",
    "auto_threshold",
    "bitmap_decode",
    "bitmap_encode",
    "kernel_info",
    "momentum_update",
    "nonfinite",
    "philox",
    "precondition",
    "precondition_update",
    "rice_decode",
    "rice_encode",
    "swap",
]
