"""Adds what exceeded a threshold on each rank."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._threshold import read_sent
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["threshold_add_decoded"]


def _check(streams: Tensor, out: Tensor, scale: float) -> None:  # noqa: ARG001
    check_vector("threshold_add_decoded.out", out, torch.float32, out)
    length = streams.size(1) if streams.dim() == 2 else 0
    check_rows("threshold_add_decoded.streams", streams, torch.uint8, out, length)


@operation("threshold_add_decoded(Tensor streams, Tensor(a!) out, float scale) -> ()", _check)
def threshold_add_decoded(streams: Tensor, out: Tensor, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out[place] = out[place] + scale * value.

    Bytes from a peer are safe whatever they are; what makes no sense is left out.

    Args:
        streams: uint8, (W, length), rows contiguous, as ``threshold_encode`` writes them; with what is not in use or
            without.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(20, dtype=torch.uint8)
    >>> torch.ops.gradwire.threshold_encode(torch.tensor([1.0, -5.0, 3.0]), used, stream, 3.0)
    >>> out = torch.zeros(3)
    >>> threshold_add_decoded(stream.unsqueeze(0), out, scale=0.5)
    >>> out.tolist()
    [0.0, -2.5, 0.0]

    Source: as ``threshold_encode``.
    """
    for row in streams:
        places, values = read_sent(row, out.numel())
        inside = places < out.numel()
        out.index_add_(0, places[inside], (values * float32(scale))[inside])


@threshold_add_decoded.kernel("CPU")
def _cpu(streams: Tensor, out: Tensor, scale: float) -> None:
    rows = streams.data_ptr(), streams.size(0), streams.stride(0), streams.size(1)
    kernels.threshold_add_decoded(*rows, out.data_ptr(), scale, out.numel(), torch.get_num_threads())
