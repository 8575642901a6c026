"""1-bit codes of a tensor, without a residual."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector
from gradwire.ops._codes import code_bytes, pack, threshold_of
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["onebit_encode"]


def _check(x: Tensor, codes: Tensor, threshold: float, step: Tensor | None = None) -> None:  # noqa: ARG001
    check_vector("onebit_encode.x", x, torch.float32, x)
    check_vector("onebit_encode.codes", codes, torch.uint8, x, code_bytes(x.numel(), 1))
    if step is not None:
        check_vector("onebit_encode.step", step, torch.float32, x, 1)


@operation("onebit_encode(Tensor x, Tensor(a!) codes, float threshold, Tensor? step=None) -> ()", _check)
def onebit_encode(x: Tensor, codes: Tensor, threshold: float, step: Tensor | None = None) -> None:
    """Write which elements are above the threshold: 1 if x > t * step, else 0 (so also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 32) bytes; element i in byte i // 8, the first in the highest bit; the tail is 0.
        threshold: t, any number, in units of the step; rounded to float32.
        step: float32, 1 element; None: 1.

    Raises:
        ConfigError: a tensor is not of this form.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> onebit_encode(torch.tensor([0.6, 0.5, -0.1, 0.51]), codes, 0.5)
    >>> bytes(codes.tolist()).hex()
    '90000000'

    Source: Apache MXNet, gradient compression of type "1bit" (2021); F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit
    Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech
    2014.
    """
    pack((x > threshold_of(threshold, step)).to(torch.uint8), 1, codes)


@onebit_encode.kernel("CPU")
def _cpu(x: Tensor, codes: Tensor, threshold: float, step: Tensor | None = None) -> None:
    size = 0 if step is None else step.data_ptr()
    kernels.onebit_encode(x.data_ptr(), codes.data_ptr(), threshold, size, x.numel(), torch.get_num_threads())
