"""Adds streams of +1, 0 and -1, each in a form of its own."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_rows, check_vector
from gradwire.ops._codes import code_bytes, unpack
from gradwire.ops._steps import check_steps, sizes, step_rows
from gradwire.ops._ternary import DENSE, read_ternary
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["ternary_add_decoded"]


def _check(streams: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("ternary_add_decoded.out", out, torch.float32, out)
    length = streams.size(1) if streams.dim() == 2 else 0
    check_rows("ternary_add_decoded.streams", streams, torch.uint8, out, length)
    check_steps("ternary_add_decoded.steps", steps, streams)


@operation(
    "ternary_add_decoded(Tensor streams, Tensor(a!) out, float threshold, float scale, Tensor? steps=None) -> ()",
    _check,
)
def ternary_add_decoded(
    streams: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (+1: s, -1: -s, 0: 0), s = scale * threshold.

    Bytes from a peer are safe whatever they are; what makes no sense is left out.

    Args:
        streams: uint8, (W, length), rows contiguous, as ``ternary_encode`` writes them; with what is not in use or
            without.
        out: float32, n elements.
        threshold: that of the encoder; rounded to float32.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), a factor of the threshold for each rank; None: 1.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> out = torch.zeros(4)
    >>> ternary_add_decoded(torch.tensor([[1, 0b1001, 0b10]], dtype=torch.uint8), out, 0.5, 1.0)
    >>> out.tolist()
    [-0.5, 0.0, 0.0, 0.5]
    """
    for row, step in zip(streams, sizes(streams, threshold, scale, steps), strict=True):
        if row.numel() == 0 or int(row[0]) == DENSE:
            codes = torch.nn.functional.pad(row[1:], (0, code_bytes(out.numel(), 2)))
            none = torch.zeros_like(step)
            out += torch.cat([none, none, -step, step])[
                unpack(codes[: code_bytes(out.numel(), 2)], 2, out.numel()).int()
            ]
        else:
            places, positive = read_ternary(row, out.numel())
            out.index_add_(0, places, torch.where(positive, step, -step))


@ternary_add_decoded.kernel("CPU")
def _cpu(streams: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None) -> None:
    rows = streams.data_ptr(), streams.size(0), streams.stride(0), streams.size(1), *step_rows(steps)
    kernels.ternary_add_decoded(*rows, out.data_ptr(), threshold, scale, out.numel(), torch.get_num_threads())
