"""The operations that the compressors are made of: one per file, with a plain-torch reference and its kernels."""

from gradwire.ops.cast_add_decoded import cast_add_decoded
from gradwire.ops.cast_encode import cast_encode
from gradwire.ops.moments import moments
from gradwire.ops.moments_feedback import moments_feedback
from gradwire.ops.native import kernel_info
from gradwire.ops.nonfinite import nonfinite
from gradwire.ops.onebit_add_decoded import onebit_add_decoded
from gradwire.ops.onebit_encode import onebit_encode
from gradwire.ops.onebit_encode_feedback import onebit_encode_feedback
from gradwire.ops.philox import philox
from gradwire.ops.prefix_decode import prefix_decode
from gradwire.ops.prefix_encode import prefix_encode
from gradwire.ops.qsgd_add_decoded import qsgd_add_decoded
from gradwire.ops.qsgd_encode import qsgd_encode
from gradwire.ops.qsgd_encode_feedback import qsgd_encode_feedback
from gradwire.ops.rans_decode import rans_decode
from gradwire.ops.rans_encode import rans_encode
from gradwire.ops.round_encode import round_encode
from gradwire.ops.round_keep import round_keep
from gradwire.ops.sparse_add_decoded import sparse_add_decoded
from gradwire.ops.swap import swap
from gradwire.ops.three_lc_add_decoded import three_lc_add_decoded
from gradwire.ops.three_lc_encode import three_lc_encode
from gradwire.ops.three_lc_encode_feedback import three_lc_encode_feedback
from gradwire.ops.topk_encode import topk_encode
from gradwire.ops.topk_encode_feedback import topk_encode_feedback
from gradwire.ops.twobit_add_decoded import twobit_add_decoded
from gradwire.ops.twobit_encode import twobit_encode
from gradwire.ops.twobit_encode_feedback import twobit_encode_feedback

__all__ = [
    "cast_add_decoded",
    "cast_encode",
    "kernel_info",
    "moments",
    "moments_feedback",
    "nonfinite",
    "onebit_add_decoded",
    "onebit_encode",
    "onebit_encode_feedback",
    "philox",
    "prefix_decode",
    "prefix_encode",
    "qsgd_add_decoded",
    "qsgd_encode",
    "qsgd_encode_feedback",
    "rans_decode",
    "rans_encode",
    "round_encode",
    "round_keep",
    "sparse_add_decoded",
    "swap",
    "three_lc_add_decoded",
    "three_lc_encode",
    "three_lc_encode_feedback",
    "topk_encode",
    "topk_encode_feedback",
    "twobit_add_decoded",
    "twobit_encode",
    "twobit_encode_feedback",
]
