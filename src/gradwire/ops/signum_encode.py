"""The signs of the running mean of gradients, in one pass over memory."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._momentum import advance, check_momentum
from gradwire.ops._signs import pack_signs, sign_bytes
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["signum_encode"]


def _check(grad: Tensor, momentum: Tensor, codes: Tensor, beta: float, status: Tensor | None = None) -> None:
    check_momentum("signum_encode", grad, momentum, beta, status)
    check_vector("signum_encode.codes", codes, torch.uint8, grad, sign_bytes(grad.numel()))


@operation(
    "signum_encode(Tensor(a!) grad, Tensor(b!) momentum, Tensor(c!) codes, float beta, Tensor(d!)? status=None) -> ()",
    _check,
)
def signum_encode(grad: Tensor, momentum: Tensor, codes: Tensor, beta: float, status: Tensor | None = None) -> None:
    """``momentum_update``, then ``sign_encode`` of the new momentum.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old momentum.
        momentum: float32, n elements.
        codes: uint8, ceil(n / 8) bytes, as ``sign_encode`` writes them.
        beta: in [0, 1).
        status: int32, 1 element, or None: bit 0 is set where the new momentum is not finite.

    Raises:
        ConfigError: a tensor is not of this form, or beta is outside its range.

    >>> grad, momentum, codes = torch.tensor([4.0, -5.0]), torch.tensor([-1.0, 1.0]), torch.empty(1, dtype=torch.uint8)
    >>> signum_encode(grad, momentum, codes, 0.5)
    >>> momentum, codes.item()
    (tensor([ 1.5000, -2.0000]), 1)

    Source: as ``momentum_update``.
    """
    advance(grad, momentum, beta, status)
    pack_signs(momentum >= 0, codes)


@signum_encode.kernel("CPU")
def _cpu(grad: Tensor, momentum: Tensor, codes: Tensor, beta: float, status: Tensor | None = None) -> None:
    addresses = grad.data_ptr(), momentum.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.signum_encode(*addresses, beta, flag, grad.numel(), torch.get_num_threads())
