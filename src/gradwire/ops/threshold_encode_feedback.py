"""What exceeds a threshold of a gradient and its residual, which keeps the rest, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._threshold import capacity, exceeds, write_sent
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["threshold_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    used: Tensor,
    stream: Tensor,
    threshold: float,  # noqa: ARG001
    status: Tensor | None = None,
    level: Tensor | None = None,
) -> None:
    check_vector("threshold_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("threshold_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_vector("threshold_encode_feedback.used", used, torch.int32, grad, 1)
    check_vector("threshold_encode_feedback.stream", stream, torch.uint8, grad, capacity(grad.numel()))
    check_status("threshold_encode_feedback.status", status, grad)
    if level is not None:
        check_vector("threshold_encode_feedback.level", level, torch.float32, grad, 1)


@operation(
    "threshold_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) used, Tensor(d!) stream,"
    " float threshold, Tensor(e!)? status=None, Tensor? level=None) -> ()",
    _check,
)
def threshold_encode_feedback(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, threshold: float, status: Tensor | None = None,
    level: Tensor | None = None,
) -> None:  # fmt: skip
    """Encode x = residual + grad as ``threshold_encode`` does; the residual becomes x with +0 where it was sent.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        used: int32, 1 element.
        stream: uint8, 8 + 4 n, at a multiple of 4 bytes.
        threshold: v >= 0, in the unit of grad; rounded to float32.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.
        level: as in ``threshold_encode``.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, used, stream = torch.zeros(3), torch.empty(1, dtype=torch.int32), torch.empty(20, dtype=torch.uint8)
    >>> threshold_encode_feedback(torch.tensor([1.0, -5.0, 3.0]), residual, used, stream, threshold=3.0)
    >>> residual.tolist(), stream[8:12].view(torch.float32).item()
    ([1.0, 0.0, 3.0], -5.0)

    Source: as ``threshold_encode``.
    """
    x = compensate(grad, residual, status)
    sent = exceeds(x, threshold, level)
    used.fill_(write_sent(x, sent, stream))
    residual.copy_(torch.where(sent, 0.0, x))


@threshold_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, threshold: float, status: Tensor | None = None,
    level: Tensor | None = None,
) -> None:  # fmt: skip
    addresses = grad.data_ptr(), residual.data_ptr(), used.data_ptr(), stream.data_ptr()
    flag, own = (0 if tensor is None else tensor.data_ptr() for tensor in (status, level))
    kernels.threshold_encode_feedback(*addresses, threshold, flag, own, grad.numel(), torch.get_num_threads())
