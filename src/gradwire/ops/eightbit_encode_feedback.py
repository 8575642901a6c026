"""8-bit codes of a gradient and what was not sent before; the residual keeps the rounding errors."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._eightbit import KINDS, check_codes, check_parameters, codebook, dequantise, encode
from gradwire.ops._feedback import compensate
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["eightbit_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    scales: Tensor,
    codes: Tensor,
    kind: str,
    block: int,
    status: Tensor | None = None,
) -> None:
    check_parameters("eightbit_encode_feedback", kind, block)
    check_vector("eightbit_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("eightbit_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_codes("eightbit_encode_feedback", grad, scales, codes, block)
    check_status("eightbit_encode_feedback.status", status, grad)


@operation(
    "eightbit_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) scales, Tensor(d!) codes, str kind,"
    " int block, Tensor(e!)? status=None) -> ()",
    _check,
)
def eightbit_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    scales: Tensor,
    codes: Tensor,
    kind: str,
    block: int,
    status: Tensor | None = None,
) -> None:
    """Encode x = residual + grad as ``eightbit_encode`` does and keep what the codes do not say.

        residual = x - value * (N / F)

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        scales: float32, ceil(n / block), or one for a block of 0.
        codes: uint8, n.
        kind: "linear", "dynamic", "e4m3" or "e5m2".
        block: a multiple of 16 from 16 to 65536, or 0.
        status: int32 of one element, or None. Its bit 0 is set when an element of x is not finite; nothing clears it
            here.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> grad, residual = torch.tensor([2.0, -1.0, 0.0]), torch.tensor([0.0, 0.01, 0.0])
    >>> scales, codes = torch.empty(1), torch.empty(3, dtype=torch.uint8)
    >>> eightbit_encode_feedback(grad, residual, scales, codes, "e4m3", block=16)
    >>> bytes(codes.tolist()).hex(), [round(x, 4) for x in residual.tolist()]
    ('7ef600', [0.0, 0.01, 0.0])

    Source: as ``eightbit_encode``.
    """
    x = compensate(grad, residual, status)
    encode(x, scales, codes, kind, block)
    torch.add(x, dequantise(scales, codes, kind, block, -1.0), out=residual)


@eightbit_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor,
    residual: Tensor,
    scales: Tensor,
    codes: Tensor,
    kind: str,
    block: int,
    status: Tensor | None = None,
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), scales.data_ptr(), codes.data_ptr()
    book, flag = codebook(kind, grad.device).data_ptr(), 0 if status is None else status.data_ptr()
    n, threads = grad.numel(), torch.get_num_threads()
    kernels.eightbit_encode_feedback(*addresses, book, KINDS.index(kind), block, flag, n, threads)
