"""What exceeds a threshold, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._threshold import capacity, exceeds, write_sent
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["threshold_encode"]


def _check(x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("threshold_encode.x", x, torch.float32, x)
    check_vector("threshold_encode.used", used, torch.int32, x, 1)
    check_vector("threshold_encode.stream", stream, torch.uint8, x, capacity(x.numel()))
    if level is not None:
        check_vector("threshold_encode.level", level, torch.float32, x, 1)


@operation(
    "threshold_encode(Tensor x, Tensor(a!) used, Tensor(b!) stream, float threshold, Tensor? level=None) -> ()", _check
)
def threshold_encode(x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None = None) -> None:
    """Write the elements with |x| > v and where they are; a NaN is one of them.

    The places are a bitmap or 16 bits each, or every element is written, whichever is smallest; ``docs/wire.md`` has
    the forms under ``threshold``.

    Args:
        x: float32, n elements; not changed.
        used: int32, 1 element: the bytes of ``stream`` that are in use.
        stream: uint8, 8 + 4 n, at a multiple of 4 bytes; what is not in use is of no meaning.
        threshold: v >= 0, in the unit of x; rounded to float32.
        level: float32, 1 element, l > 0, or None. With it the elements with |x_i| >= d_i l are written, in place of
            those above v; d_i in [1, 2) as in ``dithered_encode``.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(24, dtype=torch.uint8)
    >>> threshold_encode(torch.tensor([1.0, -5.0, 3.0, -2.0]), used, stream, threshold=3.0)
    >>> used.item(), stream[4].item(), stream[8:12].view(torch.float32).item(), stream[12].item()
    (13, 1, -5.0, 2)

    Source: A. Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical Implementations of
    Compressed Communication for Distributed Deep Learning", AAAI 2020.
    """
    used.fill_(write_sent(x, exceeds(x, threshold, level), stream))


@threshold_encode.kernel("CPU")
def _cpu(x: Tensor, used: Tensor, stream: Tensor, threshold: float, level: Tensor | None = None) -> None:
    addresses = x.data_ptr(), used.data_ptr(), stream.data_ptr()
    kernels.threshold_encode(
        *addresses, threshold, 0 if level is None else level.data_ptr(), x.numel(), torch.get_num_threads()
    )
