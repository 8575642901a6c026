"""Powers of two of a gradient and what was not sent before; the residual keeps the rounding errors."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_status, check_vector
from gradwire.ops._feedback import compensate
from gradwire.ops._natural import check_codes, check_parameters, dequantise, encode
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["natural_encode_feedback"]


def _check(
    grad: Tensor,
    residual: Tensor,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
    status: Tensor | None = None,
) -> None:
    check_parameters("natural_encode_feedback", rounding, block)
    check_vector("natural_encode_feedback.grad", grad, torch.float32, grad)
    check_vector("natural_encode_feedback.residual", residual, torch.float32, grad, grad.numel())
    check_codes("natural_encode_feedback", grad, bases, codes, block)
    check_status("natural_encode_feedback.status", status, grad)


@operation(
    "natural_encode_feedback(Tensor(a!) grad, Tensor(b!) residual, Tensor(c!) bases, Tensor(d!) codes, str rounding,"
    " int block, int key, int step, Tensor(e!)? status=None) -> ()",
    _check,
)
def natural_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    """Encode x = residual + grad as ``natural_encode`` does and keep what the codes do not say.

        residual = x - decoded

    Args:
        grad: float32, n elements. Without ``status`` it is not changed; with it, it receives the old residual.
        residual: float32, n elements.
        bases: uint8, ceil(n / block).
        codes: uint8, n.
        rounding: "random" or "nearest".
        block: a multiple of 16 from 16 to 65536.
        key: the stream of random numbers, a signed 64-bit integer.
        step: of the stream.
        status: int32 of one element, or None. Its bit 0 is set when an element of x is not finite; nothing clears it
            here.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> grad, residual = torch.tensor([1.0, -0.75]), torch.tensor([0.0, 0.125])
    >>> bases, codes = torch.empty(1, dtype=torch.uint8), torch.empty(2, dtype=torch.uint8)
    >>> natural_encode_feedback(grad, residual, bases, codes, "nearest", block=16, key=1, step=0)
    >>> codes.tolist(), residual.tolist()
    ([126, 253], [0.0, -0.125])

    Source: as ``natural_encode``.
    """
    x = compensate(grad, residual, status)
    encode(x, bases, codes, rounding, block, key, step)
    torch.add(x, dequantise(bases, codes, block, -1.0), out=residual)


@natural_encode_feedback.kernel("CPU")
def _cpu(
    grad: Tensor,
    residual: Tensor,
    bases: Tensor,
    codes: Tensor,
    rounding: str,
    block: int,
    key: int,
    step: int,
    status: Tensor | None = None,
) -> None:
    addresses = grad.data_ptr(), residual.data_ptr(), bases.data_ptr(), codes.data_ptr()
    flag, threads = 0 if status is None else status.data_ptr(), torch.get_num_threads()
    kernels.natural_encode_feedback(*addresses, rounding == "random", block, key, step, flag, grad.numel(), threads)
