"""The operations that the compressors are made of: one per file, with a plain-torch reference and its kernels."""

from gradwire.ops.accumulate import accumulate
from gradwire.ops.bitmap_decode import bitmap_decode
from gradwire.ops.bitmap_encode import bitmap_encode
from gradwire.ops.cast_add_decoded import cast_add_decoded
from gradwire.ops.cast_encode import cast_encode
from gradwire.ops.native import kernel_info
from gradwire.ops.nonfinite import nonfinite
from gradwire.ops.onebit_add_decoded import onebit_add_decoded
from gradwire.ops.onebit_encode import onebit_encode
from gradwire.ops.onebit_encode_feedback import onebit_encode_feedback
from gradwire.ops.philox import philox
from gradwire.ops.qsgd_add_decoded import qsgd_add_decoded
from gradwire.ops.qsgd_encode import qsgd_encode
from gradwire.ops.qsgd_encode_feedback import qsgd_encode_feedback
from gradwire.ops.randomk_add_decoded import randomk_add_decoded
from gradwire.ops.randomk_encode import randomk_encode
from gradwire.ops.rice_decode import rice_decode
from gradwire.ops.rice_encode import rice_encode
from gradwire.ops.sparse_add_decoded import sparse_add_decoded
from gradwire.ops.strom_encode import strom_encode
from gradwire.ops.strom_encode_feedback import strom_encode_feedback
from gradwire.ops.swap import swap
from gradwire.ops.ternary_add_decoded import ternary_add_decoded
from gradwire.ops.ternary_encode import ternary_encode
from gradwire.ops.threshold_add_decoded import threshold_add_decoded
from gradwire.ops.threshold_encode import threshold_encode
from gradwire.ops.threshold_encode_feedback import threshold_encode_feedback
from gradwire.ops.topk_encode import topk_encode
from gradwire.ops.topk_encode_feedback import topk_encode_feedback
from gradwire.ops.twobit_add_decoded import twobit_add_decoded
from gradwire.ops.twobit_encode import twobit_encode
from gradwire.ops.twobit_encode_feedback import twobit_encode_feedback

__all__ = [
    "accumulate",
    "bitmap_decode",
    "bitmap_encode",
    "cast_add_decoded",
    "cast_encode",
    "kernel_info",
    "nonfinite",
    "onebit_add_decoded",
    "onebit_encode",
    "onebit_encode_feedback",
    "philox",
    "qsgd_add_decoded",
    "qsgd_encode",
    "qsgd_encode_feedback",
    "randomk_add_decoded",
    "randomk_encode",
    "rice_decode",
    "rice_encode",
    "sparse_add_decoded",
    "strom_encode",
    "strom_encode_feedback",
    "swap",
    "ternary_add_decoded",
    "ternary_encode",
    "threshold_add_decoded",
    "threshold_encode",
    "threshold_encode_feedback",
    "topk_encode",
    "topk_encode_feedback",
    "twobit_add_decoded",
    "twobit_encode",
    "twobit_encode_feedback",
]
