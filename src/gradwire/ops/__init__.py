"""Operations that compressors are made of, each with a plain-torch reference and its kernels.

Those of one family of compressors are in its folder, as ``gradwire.compressors.ternary.ops``.
"""

from gradwire.ops.auto_threshold import auto_threshold
from gradwire.ops.block_norms import block_norms
from gradwire.ops.eden_add_decoded import eden_add_decoded
from gradwire.ops.eden_encode import eden_encode
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
from gradwire.ops.thc_add_decoded import thc_add_decoded
from gradwire.ops.thc_encode import thc_encode
from gradwire.ops.waves_add_decoded import waves_add_decoded

__all__ = [
    "accumulate",
    "auto_threshold",
    "bitmap_decode",
    "bitmap_encode",
    "block_norms",
    "eden_add_decoded",
    "eden_encode",
    "kernel_info",
    "momentum_update",
    "nonfinite",
    "philox",
    "precondition",
    "precondition_update",
    "rice_decode",
    "rice_encode",
    "swap",
    "thc_add_decoded",
    "thc_encode",
    "waves_add_decoded",
]
