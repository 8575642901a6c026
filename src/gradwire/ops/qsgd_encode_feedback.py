"""QSGD codes of a gradient and what was not sent before; the residual keeps the rounding errors."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector, float32
from gradwire.ops._feedback import compensate
from gradwire.ops._qsgd import (
    check_codes,
    check_levels,
    check_parameters,
    norms_of,
    pack_levels,
    quantise,
    spread,
    steps_of,
    top_of,
    values_of,
)
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
    shrink: float = 1.0,  # noqa: ARG001
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    check_parameters("qsgd_encode_feedback", bits, block, norm)
    check_levels("qsgd_encode_feedback", bits, levels, grid)
    check_vector("qsgd_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("qsgd_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_codes("qsgd_encode_feedback", grad, norms, codes, bits, block)
    check_status("qsgd_encode_feedback.status", status, grad)


@operation(
    "qsgd_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) norms, Tensor(d!) codes, int bits,"
    " int block, str norm, int key, int step, Tensor(e!)? status=None, float shrink=1.0, int levels=0,"
    " str grid='uniform') -> ()",
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
    shrink: float = 1.0,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    """Encode x = residual + grad as ``qsgd_encode`` does and keep what the codes do not say.

        residual = x - shrink * (q * N / s)

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
        shrink: what the decoder will multiply by; rounded to float32.
        levels: s, as ``qsgd_encode`` takes it.
        grid: "uniform" or "powers".

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
    top = top_of(bits, levels)
    q = quantise(x, norms, top, block, key, step, grid)
    pack_levels(q, bits, codes)
    backwards = -(steps_of(norms, top, grid) * float32(shrink))
    torch.add(x, spread(backwards, x.numel(), block) * values_of(q, top, grid), out=residual)
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
    shrink: float = 1.0,
    levels: int = 0,
    grid: str = "uniform",
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), norms.data_ptr(), codes.data_ptr()
    flag = 0 if status is None else status.data_ptr()
    form = shrink, top_of(bits, levels), grid == "powers"
    kernels.qsgd_encode_feedback(
        *addresses, bits, block, norm == "l2", key, step, flag, *form, grad.numel(), torch.get_num_threads()
    )
