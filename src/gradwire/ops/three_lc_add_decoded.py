"""Adds the decoded 3LC payloads of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._three_lc import check_block, decode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["three_lc_add_decoded"]


def _check(scales: Tensor, lengths: Tensor, stream: Tensor, out: Tensor, block: int, scale: float) -> None:  # noqa: ARG001
    check_block("three_lc_add_decoded", block)
    blocks = -(-out.numel() // block)
    check_vector("three_lc_add_decoded.out", out, torch.float32, out)
    check_rows("three_lc_add_decoded.scales", scales, torch.float32, out, blocks)
    check_rows("three_lc_add_decoded.lengths", lengths, torch.int16, out, blocks)
    check_rows("three_lc_add_decoded.stream", stream, torch.uint8, out, stream.size(-1) if stream.dim() else 0)
    same = scales.size(0) == lengths.size(0) == stream.size(0)
    found = (scales.size(0), lengths.size(0), stream.size(0))
    require(same, "three_lc_add_decoded.scales", "as many rows as lengths and stream", found)


@operation(
    "three_lc_add_decoded(Tensor scales, Tensor lengths, Tensor stream, Tensor(a!) out, int block, float scale) -> ()",
    _check,
)
def three_lc_add_decoded(
    scales: Tensor, lengths: Tensor, stream: Tensor, out: Tensor, block: int, scale: float
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (scale * M) * q, where q is not 0.

    Args:
        scales: float32, (W, ceil(n / block)) with contiguous rows: the scales M of each rank.
        lengths: int16, (W, ceil(n / block)) with contiguous rows: bytes of each block. One that does not fit into the
            stream counts as no bytes.
        stream: uint8, (W, bytes) with contiguous rows: at least what is used. Any bytes are safe.
        out: float32, n elements; NaN in blocks whose scale is not finite.
        block: a multiple of 16 from 16 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out, lengths = torch.zeros(5), torch.ones(1, 1, dtype=torch.int16)
    >>> stream = torch.tensor([[208]], dtype=torch.uint8)
    >>> three_lc_add_decoded(torch.tensor([[4.0]]), lengths, stream, out, block=16, scale=0.5)
    >>> out.tolist()
    [2.0, 0.0, 2.0, -2.0, 0.0]

    Source: H. Lim, D. G. Andersen, M. Kaminsky, "3LC: Lightweight and Effective Traffic Compression for Distributed
    Machine Learning", MLSys 2019.
    """
    n = out.numel()
    for row_scales, row_lengths, row_stream in zip(scales, lengths, stream, strict=True):
        q = decode(row_lengths, row_stream, n, block)
        steps = (row_scales * float32(scale)).repeat_interleave(block, output_size=row_scales.numel() * block)[:n]
        out.copy_(torch.where(q != 0, out + steps * q, out))
        broken = ~row_scales.isfinite()
        out.masked_fill_(broken.repeat_interleave(block, output_size=broken.numel() * block)[:n], torch.nan)


@three_lc_add_decoded.kernel("CPU")
def _cpu(scales: Tensor, lengths: Tensor, stream: Tensor, out: Tensor, block: int, scale: float) -> None:
    tensors, (ranks, size) = (scales, lengths, stream), stream.shape
    rows = [part for t in tensors for part in (t.data_ptr(), t.stride(0) * t.element_size())]
    form = ranks, size, out.data_ptr(), block, scale
    kernels.three_lc_add_decoded(*rows, *form, out.numel(), torch.get_num_threads())
