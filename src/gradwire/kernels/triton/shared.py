"""Operations that all families share, on a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.levels import groups, largest, load
from gradwire.kernels.triton.levels import tile as tile_of
from gradwire.kernels.triton.philox import philox_table
from gradwire.kernels.triton.scales import follow
from gradwire.kernels.triton.status import compensate, flag_nonfinite
from gradwire.kernels.triton.stored import code_scale, write_rows
from gradwire.kernels.triton.tile import blocks, elements, number

__all__ = [
    "accumulate",
    "accumulate_momentum",
    "add_scaled",
    "begin_sum",
    "copy_where",
    "fill_where",
    "mask_momentum",
    "momentum_update",
    "nonfinite",
    "philox",
    "precondition",
    "precondition_update",
    "scale",
    "swap",
    "write_codes",
]


_NAN = tl.constexpr(0x7FC00000)


@triton.jit
def _accumulate(grad, residual, status, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    tl.store(residual + i, compensate(grad, residual, status, i, n), mask=i < n)


def accumulate(grad: Tensor, residual: Tensor, status: Tensor | None = None) -> None:
    n = grad.numel()
    launch(_accumulate, (triton.cdiv(n, BLOCK),), grad, residual, status, n, BLOCK=BLOCK)


@triton.jit
def _momentum_update(grad, momentum, status, n, beta: tl.float32, rest: tl.float32, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    old = tl.load(momentum + i, mask=inside, other=0.0)
    now = old * beta + tl.load(grad + i, mask=inside, other=0.0) * rest
    if status is not None:
        tl.store(grad + i, old, mask=inside)
        flag_nonfinite(now, status)
    tl.store(momentum + i, now, mask=inside)


def momentum_update(grad: Tensor, momentum: Tensor, beta: float, status: Tensor | None = None) -> None:
    n, factors = grad.numel(), (float32(beta), float32(1 - beta))
    launch(_momentum_update, (triton.cdiv(n, BLOCK),), grad, momentum, status, n, *factors, BLOCK=BLOCK)


@triton.jit
def _add_scaled(x, y, status, n, factor: tl.float32, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    total = tl.load(x + i, mask=i < n, other=0.0) + tl.load(y + i, mask=i < n, other=0.0) * factor
    if status is not None:
        flag_nonfinite(total, status)
    tl.store(x + i, total, mask=i < n)


def add_scaled(x: Tensor, y: Tensor, factor: float, status: Tensor | None = None) -> None:
    n = x.numel()
    launch(_add_scaled, (triton.cdiv(n, BLOCK),), x, y, status, n, float32(factor), BLOCK=BLOCK)


@triton.jit
def _scale(x, status, n, factor: tl.float32, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    product = tl.load(x + i, mask=i < n, other=0.0) * factor
    if status is not None:
        flag_nonfinite(product, status)
    tl.store(x + i, product, mask=i < n)


def scale(x: Tensor, factor: float, status: Tensor | None = None) -> None:
    launch(_scale, (triton.cdiv(x.numel(), BLOCK),), x, status, x.numel(), float32(factor), BLOCK=BLOCK)


@triton.jit
def _accumulate_momentum(
    grad, momentum, undo, status, n, beta: tl.float32, NESTEROV: tl.constexpr, BLOCK: tl.constexpr, program=None
):
    i = elements(BLOCK, program)
    inside = i < n
    old = tl.load(momentum + i, mask=inside, other=0.0)
    given = tl.load(grad + i, mask=inside, other=0.0)
    if NESTEROV:
        now = (old + given) * beta
        growth = given + now
    else:
        now = old * beta + given
        growth = now
    if undo is not None:
        tl.store(undo + i, old, mask=inside)
    if status is not None:
        flag_nonfinite(growth, status)
    tl.store(momentum + i, now, mask=inside)
    tl.store(grad + i, growth, mask=inside)


def accumulate_momentum(
    grad: Tensor, momentum: Tensor, undo: Tensor | None, beta: float, nesterov: bool, status: Tensor | None = None
) -> None:
    n, form = grad.numel(), {"NESTEROV": nesterov, "BLOCK": BLOCK}
    launch(_accumulate_momentum, (triton.cdiv(n, BLOCK),), grad, momentum, undo, status, n, float32(beta), **form)


@triton.jit
def _mask_momentum(velocity, momentum, sent, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    gone = tl.load(sent + i, mask=inside, other=0.0)
    tl.store(velocity + i, tl.load(velocity + i, mask=inside) - gone, mask=inside)
    tl.store(momentum + i, tl.zeros((BLOCK,), tl.float32), mask=inside & (gone != 0.0))


def mask_momentum(velocity: Tensor, momentum: Tensor, sent: Tensor) -> None:
    n = velocity.numel()
    launch(_mask_momentum, (triton.cdiv(n, BLOCK),), velocity, momentum, sent, n, BLOCK=BLOCK)


@triton.jit
def _nonfinite(x, status, n, factor: tl.float32, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    flag_nonfinite(tl.load(x + i, mask=i < n, other=0.0).to(tl.float32) * factor, status)


def nonfinite(x: Tensor, status: Tensor, factor: float = 1.0) -> None:
    n, factor = x.numel(), float32(factor) if x.dtype == torch.float32 else 1.0
    launch(_nonfinite, (triton.cdiv(n, BLOCK),), x, status, n, factor, BLOCK=BLOCK)


@triton.jit(do_not_specialize=["key", "step", "offset"])
def _philox(out, n, key: tl.int64, step: tl.int64, offset: tl.int64, COUNTERS: tl.constexpr, program=None):
    counter = number(program) * COUNTERS + tl.arange(0, COUNTERS)
    i = counter[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out + i, philox_table(counter + offset, key, step).to(tl.int32, bitcast=True), mask=i < n)


def philox(out: Tensor, key: int, step: int, offset: int = 0) -> None:
    n = out.numel()
    launch(_philox, (triton.cdiv(n, BLOCK),), out, n, key, step, offset, COUNTERS=BLOCK // 4)


@triton.jit
def _copy_where(source, target, when, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    # Where the flag is not set no element is read or written.
    inside = i < (n if when is None else tl.where(tl.load(when) != 0, n, 0))
    tl.store(target + i, tl.load(source + i, mask=inside), mask=inside)


def copy_where(source: Tensor, target: Tensor, when: Tensor | None = None) -> None:
    n, flag = source.numel(), None if when is None else when.view(torch.uint8)
    launch(_copy_where, (triton.cdiv(n, BLOCK),), source, target, flag, n, BLOCK=BLOCK)


@triton.jit
def _fill_where(out, value: tl.float32, when, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < (n if when is None else tl.where(tl.load(when) != 0, n, 0))
    tl.store(out + i, tl.full((BLOCK,), 0.0, tl.float32) + value, mask=inside)


def fill_where(out: Tensor, value: float, when: Tensor | None = None) -> None:
    n, flag = out.numel(), None if when is None else when.view(torch.uint8)
    launch(_fill_where, (triton.cdiv(n, BLOCK),), out, float32(value), flag, n, BLOCK=BLOCK)


@triton.jit
def _begin_sum(out, residual, flag, n, BLOCK: tl.constexpr, program=None):
    i, bad = elements(BLOCK, program), tl.load(flag) != 0
    if residual is not None:
        # Where the flag is not set no element is read.
        back = i < tl.where(bad, n, 0)
        tl.store(residual + i, tl.load(out + i, mask=back), mask=back)
        # What was read is overwritten below, perhaps by another thread.
        tl.debug_barrier()
    value = tl.where(bad, _NAN, 0).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(out + i, tl.full((BLOCK,), 0.0, tl.float32) + value, mask=i < n)


def begin_sum(out: Tensor, residual: Tensor | None, bad: Tensor) -> None:
    n = out.numel()
    launch(_begin_sum, (triton.cdiv(n, BLOCK),), out, residual, bad.view(torch.uint8), n, BLOCK=BLOCK)


@triton.jit
def _precondition(grad, scale, status, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    divisor = tl.load(scale + i, mask=i < n, other=1.0)
    found = tl.div_rn(tl.load(grad + i, mask=i < n, other=0.0), tl.where(divisor == 0.0, 1.0, divisor))
    tl.store(grad + i, found, mask=i < n)
    if status is not None:
        flag_nonfinite(found, status)


def precondition(grad: Tensor, scale: Tensor, status: Tensor | None = None) -> None:
    n = grad.numel()
    launch(_precondition, (triton.cdiv(n, BLOCK),), grad, scale, status, n, BLOCK=BLOCK)


def precondition_update(out: Tensor, scale: Tensor, bad: Tensor, beta: float, floor: float) -> None:
    follow(out, scale, bad, beta, floor)


@triton.jit
def _swap(a, b, n, BLOCK: tl.constexpr, program=None):
    i = elements(BLOCK, program)
    inside = i < n
    kept = tl.load(a + i, mask=inside)
    tl.store(a + i, tl.load(b + i, mask=inside), mask=inside)
    tl.store(b + i, kept, mask=inside)


def swap(a: Tensor, b: Tensor) -> None:
    n = a.numel()
    launch(_swap, (triton.cdiv(n, BLOCK),), a, b, n, BLOCK=BLOCK)


@triton.jit
def _write_codes(
    values, stored, when, n, count, GROUPS: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr, program=None
):
    wanted = True if when is None else tl.load(when) != 0
    block = blocks(ROWS, program)
    x = load(values, groups(block, 0, GROUPS, SPAN), tl.where(wanted, n, 0))
    write_rows(stored, x, code_scale(largest(x)), block, count, GROUPS, SPAN, wanted)


def write_codes(values: Tensor, stored: Tensor, block: int, when: Tensor | None = None) -> None:
    """The operation on a GPU; a program has whole blocks."""
    n, part, flag = values.numel(), tile_of(block), None if when is None else when.view(torch.uint8)
    count = triton.cdiv(n, block)
    launch(_write_codes, (triton.cdiv(count, part["ROWS"]),), values, stored, flag, n, count, **part)
