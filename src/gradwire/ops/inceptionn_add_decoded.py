"""Adds the elements of a tagged stream to a tensor."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._inceptionn import check_bound, decode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["inceptionn_add_decoded"]


def _check(stream: Tensor, out: Tensor, bound: int, scale: float) -> None:  # noqa: ARG001
    check_bound("inceptionn_add_decoded", bound)
    check_vector("inceptionn_add_decoded.out", out, torch.float32, out)
    check_vector("inceptionn_add_decoded.stream", stream, torch.uint8, out)


@operation("inceptionn_add_decoded(Tensor stream, Tensor(a!) out, int bound, float scale) -> ()", _check)
def inceptionn_add_decoded(stream: Tensor, out: Tensor, bound: int, scale: float) -> None:
    """Add one payload: out = out + scale * decoded.

    Args:
        stream: uint8, what ``inceptionn_encode`` wrote; the part in use suffices. Any bytes are safe: those that are
            missing are read as zeros.
        out: float32, n elements.
        bound: 1 to 15, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> out, stream = torch.zeros(4), torch.tensor(list(bytes.fromhex("00e40a00c000000040")), dtype=torch.uint8)
    >>> inceptionn_add_decoded(stream, out, 10, 0.5)
    >>> out.tolist()
    [0.0, 0.0048828125, -0.25, 1.0]

    Source: as ``inceptionn_encode``.
    """
    out += decode(stream, out.numel(), bound) * float32(scale)


@inceptionn_add_decoded.kernel("CPU")
def _cpu(stream: Tensor, out: Tensor, bound: int, scale: float) -> None:
    addresses = stream.data_ptr(), stream.numel(), out.data_ptr()
    kernels.inceptionn_add_decoded(*addresses, bound, scale, out.numel(), torch.get_num_threads())
