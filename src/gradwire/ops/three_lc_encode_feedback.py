"""3LC codes of a gradient with its residual, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._three_lc import check_payload, encode, scales_of, ternary
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["three_lc_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    used: Tensor,
    scales: Tensor,
    lengths: Tensor,
    stream: Tensor,
    block: int,
    sparsity: float,
    status: Tensor | None = None,
) -> None:
    check_vector("three_lc_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("three_lc_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_payload("three_lc_encode_feedback", grad, used, scales, lengths, stream, block, sparsity)
    check_status("three_lc_encode_feedback.status", status, grad)


@operation(
    "three_lc_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) used, Tensor(d!) scales,"
    " Tensor(e!) lengths, Tensor(f!) stream, int block, float sparsity, Tensor(g!)? status=None) -> ()",
    _check,
)
def three_lc_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    used: Tensor,
    scales: Tensor,
    lengths: Tensor,
    stream: Tensor,
    block: int,
    sparsity: float,
    status: Tensor | None = None,
) -> None:
    """Encode x = residual + grad as ``three_lc_encode`` does and keep x - M, x or x + M.

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        used: int32, one element.
        scales: float32, ceil(n / block). Where one is not finite the residual becomes NaN.
        lengths: int16, ceil(n / block).
        stream: uint8, as ``three_lc_encode`` writes it.
        block: a multiple of 16 from 16 to 65536.
        sparsity: in [1, 2).
        status: int32 of one element, or None. Its bit 0 is set when an element of x or a scale is not finite.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> used, scales = torch.empty(1, dtype=torch.int32), torch.empty(1)
    >>> lengths, stream = torch.empty(1, dtype=torch.int16), torch.empty(1, dtype=torch.uint8)
    >>> residual = torch.tensor([3.0, -2.0, 2.5, -5.0, 0.0])
    >>> three_lc_encode_feedback(torch.ones(5), residual, used, scales, lengths, stream, 16, 1.0)
    >>> residual.tolist()
    [0.0, -1.0, -0.5, 0.0, 1.0]

    Source: as ``three_lc_encode``.
    """
    x = compensate(grad, residual, status)
    scales.copy_(scales_of(x, block, sparsity))
    q = ternary(x, scales, block)
    encode(q, scales, x.numel(), used, lengths, stream)
    steps = scales.unsqueeze(1).expand_as(q).reshape(-1)[: x.numel()]
    q = q.view(-1)[: x.numel()]
    kept = torch.where(q > 0, x - steps, torch.where(q < 0, x + steps, x))
    residual.copy_(kept.masked_fill_(~steps.isfinite(), torch.nan))
    if status is not None:
        status |= ~scales.isfinite().all()


@three_lc_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor,
    residual: Tensor,
    used: Tensor,
    scales: Tensor,
    lengths: Tensor,
    stream: Tensor,
    block: int,
    sparsity: float,
    status: Tensor | None = None,
) -> None:
    tensors = grad, residual, scales, lengths, stream
    flag, threads = 0 if status is None else status.data_ptr(), torch.get_num_threads()
    addresses = [tensor.data_ptr() for tensor in tensors]
    used.fill_(kernels.three_lc_encode_feedback(*addresses, block, sparsity, flag, grad.numel(), threads))
