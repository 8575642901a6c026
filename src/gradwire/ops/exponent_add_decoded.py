"""Adds signed powers of two where a bitmap says so."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._exponents import unpack_stream, values_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["exponent_add_decoded"]


def _check(streams: Tensor, used: Tensor, tops: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("exponent_add_decoded.out", out, torch.float32, out)
    length = streams.size(1) if streams.dim() == 2 else 0
    check_rows("exponent_add_decoded.streams", streams, torch.uint8, out, length)
    for name, rows in (("used", used), ("tops", tops)):
        check_rows(f"exponent_add_decoded.{name}", rows, torch.int32, out, 1)
        require(rows.size(0) == streams.size(0), f"exponent_add_decoded.{name}", "a row for each stream", rows.size(0))


@operation("exponent_add_decoded(Tensor streams, Tensor used, Tensor tops, Tensor(a!) out, float scale) -> ()", _check)
def exponent_add_decoded(streams: Tensor, used: Tensor, tops: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * sign * 2^(top - code) where a bit is set.

    Bytes from a peer are safe whatever they are: what lies beyond ``used`` does not exist.

    Args:
        streams: uint8, (W, length), rows contiguous: ceil(n / 8) bytes as of ``mark_beyond``, then the codes that
            ``exponent_encode`` writes for them.
        used: int32, (W, 1): the bytes in use of each row.
        tops: int32, (W, 1): that of each encoder; 255 decodes to NaN.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out, used = torch.zeros(3), torch.tensor([[2]], dtype=torch.int32)
    >>> exponent_add_decoded(torch.tensor([[5, 160]], dtype=torch.uint8), used, used + 127, out, 0.5)
    >>> out.tolist()
    [2.0, 0.0, -0.5]
    """
    for stream, length, top in zip(streams, used.view(-1).tolist(), tops.view(-1).tolist(), strict=True):
        places, codes = unpack_stream(stream[: max(length, 0)], out.numel())
        out[places] += values_of(codes, top) * float32(scale)


@exponent_add_decoded.kernel("CPU")
def _cpu(streams: Tensor, used: Tensor, tops: Tensor, out: Tensor, scale: float) -> None:
    rows = streams.data_ptr(), streams.size(0), streams.stride(0), streams.size(1)
    heads = used.data_ptr(), 4 * used.stride(0), tops.data_ptr(), 4 * tops.stride(0)
    kernels.exponent_add_decoded(*rows, *heads, out.data_ptr(), scale, out.numel(), torch.get_num_threads())
