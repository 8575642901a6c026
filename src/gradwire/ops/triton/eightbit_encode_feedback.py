"""8-bit codes of a gradient and what was not sent before; the residual keeps the rounding errors."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import eightbit_encode_feedback as operation
from gradwire.ops._eightbit import KINDS, codebook
from gradwire.ops.triton._eightbit import code_of, step_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, groups, largest, load, norm_of, store, tile
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["eightbit_encode_feedback"]


@triton.jit
def _write(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    book: tl.tensor,
    norm: tl.tensor,
    group: tl.tensor,
    n: tl.tensor,
    KIND: tl.constexpr,
    UNDO: tl.constexpr,
) -> None:
    old = load(residual, group, n)
    x = old + load(grad, group, n)
    code = code_of(x, norm, book, KIND)
    store(codes, code.to(tl.uint8), group, n)
    store(residual, x - step_of(norm, KIND)[:, None, None] * tl.load(book + code), group, n)
    if UNDO:
        store(grad, old, group, n)


@triton.jit
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    scales: tl.tensor,
    codes: tl.tensor,
    book: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    KIND: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, 0, GROUPS, SPAN)
    magnitude = largest(load(residual, group, n) + load(grad, group, n))
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        magnitude = tl.maximum(magnitude, largest(load(residual, group, n) + load(grad, group, n)))
    norm = norm_of(magnitude)
    tl.store(scales + block, norm, mask=block < count)
    if status is not None:
        flag_nonfinite(norm, status)
    for start in range(0, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        _write(grad, residual, codes, book, norm, group, n, KIND, status is not None)


def eightbit_encode_feedback(
    grad: Tensor,
    residual: Tensor,
    scales: Tensor,
    codes: Tensor,
    kind: str,
    block: int,
    status: Tensor | None = None,
) -> None:
    """As the operation; a block of 0 runs its reference, on the GPU."""
    if block == 0:
        operation.reference(grad, residual, scales, codes, kind, block, status)
        return
    n, count, part = grad.numel(), scales.numel(), tile(block)
    grid = (triton.cdiv(count, part["ROWS"]),)
    tensors = grad, residual, scales, codes, codebook(kind, grad.device), status
    launch(_kernel, grid, *tensors, n, count, KIND=KINDS.index(kind), **part)
