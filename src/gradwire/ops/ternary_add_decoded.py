"""Adds streams of +1, 0 and -1, each in a form of its own."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops._ternary import DENSE, read_ternary
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["ternary_add_decoded"]


def _check(streams: Tensor, out: Tensor, threshold: float, scale: float) -> None:  # noqa: ARG001
    check_vector("ternary_add_decoded.out", out, torch.float32, out)
    length = streams.size(1) if streams.dim() == 2 else 0
    check_rows("ternary_add_decoded.streams", streams, torch.uint8, out, length)


@operation("ternary_add_decoded(Tensor streams, Tensor(a!) out, float threshold, float scale) -> ()", _check)
def ternary_add_decoded(streams: Tensor, out: Tensor, threshold: float, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (+1: s, -1: -s, 0: 0), s = scale * threshold.

    Bytes from a peer are safe whatever they are; what makes no sense is left out.

    Args:
        streams: uint8, (W, length), rows contiguous, as ``ternary_encode`` writes them; with what is not in use or
            without.
        out: float32, n elements.
        threshold: that of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> ternary_add_decoded(torch.tensor([[1, 0b1001, 0b10]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out.tolist()
    [-0.5, 0.0, 0.0, 0.5]
    """
    step = float32(float32(scale) * float32(threshold))
    for row in streams:
        if row.numel() == 0 or int(row[0]) == DENSE:
            codes = torch.nn.functional.pad(row[1:], (0, code_bytes(out.numel(), 2)))
            values = torch.tensor([0.0, 0.0, -step, step], dtype=torch.float32, device=out.device)
            out += values[unpack(codes[: code_bytes(out.numel(), 2)], 2, out.numel()).int()]
        else:
            places, positive = read_ternary(row, out.numel())
            out.index_add_(0, places, torch.where(positive, step, -step).to(torch.float32))


@ternary_add_decoded.kernel("CPU")
def _cpu(streams: Tensor, out: Tensor, threshold: float, scale: float) -> None:
    rows = streams.data_ptr(), streams.size(0), streams.stride(0), streams.size(1)
    kernels.ternary_add_decoded(*rows, out.data_ptr(), threshold, scale, out.numel(), torch.get_num_threads())
