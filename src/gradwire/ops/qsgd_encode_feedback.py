"""QSGD codes of a gradient and what was not sent before; the residual keeps the rounding errors."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._qsgd import check_codes, check_parameters, norms_of, pack_levels, quantise, spread, steps_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["qsgd_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
    status: Tensor | None = None,
) -> None:
    check_parameters("qsgd_encode_feedback", bits, block, norm)
    check_vector("qsgd_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("qsgd_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_codes("qsgd_encode_feedback", grad, norms, codes, bits, block)
    check_status("qsgd_encode_feedback.status", status, grad)


@operation(
    "qsgd_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) norms, Tensor(d!) codes, int bits,"
    " int block, str norm, int key, int step, Tensor(e!)? status=None) -> ()",
    _check,
)
def qsgd_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    """Encode x = residual + grad as ``qsgd_encode`` does and keep what the codes do not say.

        residual = x - q * N / s

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        norms: float32, ceil(n / block).
        codes: uint8, ceil(n * bits / 8).
        bits: 2 to 8.
        block: a multiple of 16 from 16 to 65536.
        norm: "linf" or "l2". The residual stays bounded only where the variance factor is below 1.
        key: the stream of random numbers, a signed 64-bit integer.
        step: of the stream.
        status: int32 of one element, or None. Its bit 0 is set when an element of x or a norm is not finite; nothing
            clears it here.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> grad, residual = torch.tensor([7.0, -7.0, 0.0]), torch.tensor([0.0, 0.0, 0.5])
    >>> norms, codes = torch.empty(1), torch.empty(2, dtype=torch.uint8)
    >>> qsgd_encode_feedback(grad, residual, norms, codes, bits=4, block=16, norm="linf", key=1, step=0)
    >>> bytes(codes.tolist()).hex(), residual.tolist()
    ('9700', [0.0, 0.0, 0.5])

    Source: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient
    Quantization and Encoding", NeurIPS 2017.
    """
    x = compensate(grad, residual, status)
    norms.copy_(norms_of(x, block, norm))
    q = quantise(x, norms, bits, block, key, step)
    pack_levels(q, bits, codes)
    torch.add(x, spread(-steps_of(norms, bits), x.numel(), block) * q, out=residual)
    if status is not None:
        status |= ~norms.isfinite().all()


@qsgd_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor,
    residual: Tensor,
    norms: Tensor,
    codes: Tensor,
    bits: int,
    block: int,
    norm: str,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), norms.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    kernels.qsgd_encode_feedback(
        *addresses, bits, block, norm == "l2", key, step, flag, grad.numel(), torch.get_num_threads()
    )
