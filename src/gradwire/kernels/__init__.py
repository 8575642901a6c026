"""Operations that compressors are made of, each with a plain-torch reference and its kernels.

Those of one family of compressors are in its folder, as ``gradwire.compressors.ternary.ops``.
"""

from gradwire.kernels.auto_threshold import auto_threshold
from gradwire.kernels.native import kernel_info
from gradwire.kernels.pieces import Each, Pieces, Places
from gradwire.kernels.places import bitmap_decode, bitmap_encode, rice_decode, rice_encode
from gradwire.kernels.shared import (
    accumulate,
    accumulate_momentum,
    add_scaled,
    begin_sum,
    copy_where,
    fill_where,
    mask_momentum,
    momentum_update,
    nonfinite,
    philox,
    precondition,
    precondition_update,
    scale,
    swap,
    write_codes,
)

__all__ = [
    "Each",
    "Pieces",
    "Places",
    "accumulate",
    "accumulate_momentum",
    "add_scaled",
    "auto_threshold",
    "begin_sum",
    "bitmap_decode",
    "bitmap_encode",
    "copy_where",
    "fill_where",
    "kernel_info",
    "mask_momentum",
    "momentum_update",
    "nonfinite",
    "philox",
    "precondition",
    "precondition_update",
    "rice_decode",
    "rice_encode",
    "scale",
    "swap",
    "write_codes",
]
