"""The k largest magnitudes of a gradient and what was not sent before; the residual keeps the others."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._topk import check_sparse, select, write_places
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["topk_encode_feedback"]


def _check(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    check_vector("topk_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("topk_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_sparse("topk_encode_feedback", grad, values, indices, counts)
    check_status("topk_encode_feedback.status", status, grad)


@operation(
    "topk_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) values, Tensor(d!) indices,"
    " Tensor(e!) counts, Tensor(f!)? status=None) -> ()",
    _check,
)
def topk_encode_feedback(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    """Encode x = residual + grad as ``topk_encode`` does; the residual becomes x with +0 where it was sent.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        values: float32, k <= n elements.
        indices: int16, k elements.
        counts: int32, ceil(n / 65536).
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> residual, values, counts = torch.zeros(3), torch.empty(1), torch.empty(1, dtype=torch.int32)
    >>> indices = torch.empty(1, dtype=torch.int16)
    >>> topk_encode_feedback(torch.tensor([1.0, -5.0, 3.0]), residual, values, indices, counts)
    >>> residual.tolist(), values.item(), indices.item()
    ([1.0, 0.0, 3.0], -5.0, 1)

    Source: as ``topk_encode``; S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    x = compensate(grad, residual, status)
    chosen = select(x, values.numel())
    values.copy_(x[chosen])
    write_places(chosen, indices, counts)
    residual.copy_(x.index_fill_(0, chosen, 0.0))


@topk_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor, residual: Tensor, values: Tensor, indices: Tensor, counts: Tensor, status: Tensor | None = None
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), values.data_ptr(), indices.data_ptr(), counts.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.topk_encode_feedback(*addresses, flag, values.numel(), grad.numel(), torch.get_num_threads())
