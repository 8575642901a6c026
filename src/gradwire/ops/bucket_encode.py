"""The bucket of each element, and the sums of these."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["bucket_encode"]

_BUCKETS, _HALVES = 256, 1 << 16
_PIECE = 1 << 15


def _check(x: Tensor, bucket_of: Tensor, codes: Tensor, sums: Tensor, counts: Tensor) -> None:
    check_vector("bucket_encode.x", x, torch.float32, x)
    check_vector("bucket_encode.bucket_of", bucket_of, torch.uint8, x, _HALVES)
    check_vector("bucket_encode.codes", codes, torch.uint8, x, x.numel())
    check_vector("bucket_encode.sums", sums, torch.float64, x, _BUCKETS)
    check_vector("bucket_encode.counts", counts, torch.int64, x, _BUCKETS)


@operation(
    "bucket_encode(Tensor x, Tensor bucket_of, Tensor(a!) codes, Tensor(b!) sums, Tensor(c!) counts) -> ()", _check
)
def bucket_encode(x: Tensor, bucket_of: Tensor, codes: Tensor, sums: Tensor, counts: Tensor) -> None:
    """Look up the bucket of each element by its sign, exponent and 7 bits of mantissa.

    Args:
        x: float32, n elements; not changed.
        bucket_of: uint8, 65536: the bucket of each value of the upper 16 bits of a float32.
        codes: uint8, n: the buckets.
        sums: float64, 256: of the elements of each bucket, 32768 elements at a time, and these sums in their order; on
            an accelerator in any order.
        counts: int64, 256: how many elements each has.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> bucket_of = (torch.arange(65536) >= 32768).to(torch.uint8)
    >>> codes, counts = torch.empty(3, dtype=torch.uint8), torch.empty(256, dtype=torch.int64)
    >>> sums = torch.empty(256, dtype=torch.float64)
    >>> bucket_encode(torch.tensor([1.5, -2.0, 0.5]), bucket_of, codes, sums, counts)
    >>> codes.tolist(), sums[:2].tolist(), counts[:2].tolist()
    ([0, 1, 0], [2.0, -2.0], [2, 1])
    """
    sums.zero_()
    counts.zero_()
    size = _PIECE if x.device.type == "cpu" else max(1, x.numel())
    for part, out in zip(torch.split(x, size), torch.split(codes, size), strict=True):
        own = bucket_of.index_select(0, (part.view(torch.int32) >> 16) & (_HALVES - 1))
        out.copy_(own)
        sums += torch.bincount(own, part.double(), minlength=_BUCKETS)
        counts += torch.bincount(own, minlength=_BUCKETS)


@bucket_encode.kernel("CPU")
def _cpu(x: Tensor, bucket_of: Tensor, codes: Tensor, sums: Tensor, counts: Tensor) -> None:
    addresses = x.data_ptr(), bucket_of.data_ptr(), codes.data_ptr(), sums.data_ptr(), counts.data_ptr()
    kernels.bucket_encode(*addresses, x.numel(), torch.get_num_threads())
