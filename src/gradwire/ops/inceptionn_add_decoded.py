"""Adds the elements of the tagged streams of all ranks to a tensor."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._inceptionn import check_bound, decode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["inceptionn_add_decoded"]


def _check(streams: Tensor, out: Tensor, bound: int, scale: float) -> None:  # noqa: ARG001
    check_bound("inceptionn_add_decoded", bound)
    check_vector("inceptionn_add_decoded.out", out, torch.float32, out)
    size = streams.size(-1) if streams.dim() else 0
    check_rows("inceptionn_add_decoded.streams", streams, torch.uint8, out, size)


@operation("inceptionn_add_decoded(Tensor streams, Tensor(a!) out, int bound, float scale) -> ()", _check)
def inceptionn_add_decoded(streams: Tensor, out: Tensor, bound: int, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * decoded.

    Args:
        streams: uint8, (W, bytes) with contiguous rows: what ``inceptionn_encode`` wrote; the part in use suffices.
            Any bytes are safe: those that are missing are read as zeros.
        out: float32, n elements.
        bound: 1 to 15, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out, stream = torch.zeros(4), torch.tensor(list(bytes.fromhex("00e40a00c000000040")), dtype=torch.uint8)
    >>> inceptionn_add_decoded(stream[None], out, 10, 0.5)
    >>> out.tolist()
    [0.0, 0.0048828125, -0.25, 1.0]

    Source: as ``inceptionn_encode``.
    """
    for stream in streams:
        out += decode(stream, out.numel(), bound) * float32(scale)


@inceptionn_add_decoded.kernel("CPU")
def _cpu(streams: Tensor, out: Tensor, bound: int, scale: float) -> None:
    rows = streams.data_ptr(), streams.size(0), streams.stride(0), streams.size(1)
    kernels.inceptionn_add_decoded(*rows, out.data_ptr(), bound, scale, out.numel(), torch.get_num_threads())
