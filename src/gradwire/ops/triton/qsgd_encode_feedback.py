"""QSGD codes of a gradient and what was not sent before; the residual keeps the rounding errors."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.ops import qsgd_encode_feedback as operation
from gradwire.ops._checks import float32
from gradwire.ops._qsgd import top_of
from gradwire.ops.triton._launch import launch
from gradwire.ops.triton._qsgd import blocks, elements, encode, groups, largest, norm_of, step_of, tile
from gradwire.ops.triton._status import flag_nonfinite

__all__ = ["qsgd_encode_feedback"]


@triton.jit
def _load(grad: tl.tensor, residual: tl.tensor, group: tl.tensor, n: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The old residual, and the sum to be encoded."""
    i = elements(group)
    old = tl.load(residual + i, mask=i < n, other=0.0)
    return old, old + tl.load(grad + i, mask=i < n, other=0.0)


@triton.jit
def _store(
    grad: tl.tensor,
    residual: tl.tensor,
    group: tl.tensor,
    n: tl.tensor,
    old: tl.tensor,
    kept: tl.tensor,
    UNDO: tl.constexpr,
) -> None:
    i = elements(group)
    tl.store(residual + i, kept, mask=i < n)
    if UNDO:
        tl.store(grad + i, old, mask=i < n)


@triton.jit(do_not_specialize=["key", "step"])
def _kernel(
    grad: tl.tensor,
    residual: tl.tensor,
    norms: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    key: tl.int64,
    step: tl.int64,
    shrink: tl.float32,
    BITS: tl.constexpr,
    TOP: tl.constexpr,
    GROUPS: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    block = blocks(ROWS)
    group = groups(block, 0, GROUPS, SPAN)
    old, x = _load(grad, residual, group, n)
    magnitude = largest(x)
    for start in range(SPAN, GROUPS, SPAN):
        _, more = _load(grad, residual, groups(block, start, GROUPS, SPAN), n)
        magnitude = tl.maximum(magnitude, largest(more))
    norm = norm_of(magnitude)
    tl.store(norms + block, norm, mask=block < count)
    if status is not None:
        flag_nonfinite(norm, status)
    distance = (step_of(norm, TOP) * shrink)[:, None, None]
    # The first part, all of it where blocks are short, is still in registers.
    q = encode(x, group, norm, codes, size, key, step, BITS, TOP)
    _store(grad, residual, group, n, old, x - distance * q.to(tl.float32), status is not None)
    for start in range(SPAN, GROUPS, SPAN):
        group = groups(block, start, GROUPS, SPAN)
        old, x = _load(grad, residual, group, n)
        q = encode(x, group, norm, codes, size, key, step, BITS, TOP)
        _store(grad, residual, group, n, old, x - distance * q.to(tl.float32), status is not None)


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
    """As the operation; norm "l2" and the grid "powers" run its reference, on the GPU."""
    tensors = grad, residual, norms, codes
    if norm == "l2" or grid == "powers":
        operation.reference(*tensors, bits, block, norm, key, step, status, shrink, levels, grid)
        return
    n, count, size, part = grad.numel(), norms.numel(), codes.numel(), tile(block)
    form = {"BITS": bits, "TOP": top_of(bits, levels), **part}
    programs = (triton.cdiv(count, part["ROWS"]),)
    launch(_kernel, programs, *tensors, status, n, count, size, key, step, float32(shrink), **form)
