"""Tagged codes of a compensated gradient, and what they do not say."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._inceptionn import capacity, check_bound, decode, encode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["inceptionn_encode_feedback"]


def _check(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, bound: int, status: Tensor | None = None
) -> None:
    n = grad.numel()
    check_bound("inceptionn_encode_feedback", bound)
    check_vector("inceptionn_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("inceptionn_encode_feedback.residual", residual, torch.float32, grad, n)
    check_vector("inceptionn_encode_feedback.used", used, torch.int32, grad, 1)
    check_vector("inceptionn_encode_feedback.stream", stream, torch.uint8, grad, capacity(n))
    check_status("inceptionn_encode_feedback.status", status, grad)


@operation(
    "inceptionn_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) used, Tensor(d!) stream, int bound,"
    " Tensor(e!)? status=None) -> ()",
    _check,
)
def inceptionn_encode_feedback(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, bound: int, status: Tensor | None = None
) -> None:
    """Encode residual + grad as ``inceptionn_encode`` does, and keep the rest.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        used: int32, 1 element: how many bytes of the stream are in use.
        stream: uint8, 1 + 4 n, or none where n is 0; what is beyond ``used`` is of no meaning.
        bound: 1 to 15.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> residual, used, stream = torch.zeros(4), torch.empty(1, dtype=torch.int32), torch.empty(17, dtype=torch.uint8)
    >>> inceptionn_encode_feedback(torch.tensor([0.0005, 0.25, -0.5, 2.0]), residual, used, stream, bound=10)
    >>> residual.tolist() == [torch.tensor(0.0005).item(), 0.0, 0.0, 0.0]
    True

    Source: as ``inceptionn_encode``.
    """
    x = compensate(grad, residual, status)
    encode(x, used, stream, bound)
    residual.copy_(x - decode(stream, x.numel(), bound) if x.numel() else x)


@inceptionn_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, used: Tensor, stream: Tensor, bound: int, status: Tensor | None = None
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), used.data_ptr(), stream.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.inceptionn_encode_feedback(*addresses, bound, flag, grad.numel(), torch.get_num_threads())
