"""2-bit codes on a GPU; streams of them are left to torch, because the place of a byte depends on those before."""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.float32 import float32
from gradwire.kernels.triton.codes import pack, places, unpack
from gradwire.kernels.triton.dither import dither
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.status import compensate
from gradwire.kernels.triton.tile import begin_sum_at

__all__ = [
    "dithered_encode",
    "dithered_encode_feedback",
    "twobit_add_decoded",
    "twobit_encode",
    "twobit_encode_feedback",
]

BYTES = BLOCK // 4


@triton.jit
def _beyond(x, threshold, STRICT: tl.constexpr):
    """Compute the codes: 3 if x >= t, 2 if x <= -t, else 0."""
    if STRICT:
        return tl.where(x > threshold, 3, tl.where(x < -threshold, 2, 0))
    return tl.where(x >= threshold, 3, tl.where(x <= -threshold, 2, 0))


@triton.jit
def _store(code, inside, codes, byte, size):
    tl.store(codes + byte, pack(tl.where(inside, code, 0), 2), mask=byte < size)


@triton.jit
def _kept(x, code, sent):
    return tl.where(code == 3, x - sent, tl.where(code == 2, x + sent, x))


@triton.jit
def _encode(
    x, residual, codes, status, n, size, threshold: tl.float32, STRICT: tl.constexpr, BYTES: tl.constexpr, program=None
):
    byte, i = places(BYTES, 2, program)
    value = compensate(x, residual, status, i, n)
    code = _beyond(value, threshold, STRICT)
    _store(code, i < n, codes, byte, size)
    if residual is not None:
        tl.store(residual + i, _kept(value, code, threshold), mask=i < n)


def twobit_encode(x: Tensor, codes: Tensor, threshold: float, strict: bool = False) -> None:
    twobit_encode_feedback(x, None, codes, threshold, None, strict)


def twobit_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    codes: Tensor,
    threshold: float,
    status: Tensor | None = None,
    strict: bool = False,
) -> None:
    n, size, t = grad.numel(), codes.numel(), float32(threshold)
    launch(_encode, _grid(size), grad, residual, codes, status, n, size, t, STRICT=strict, BYTES=BYTES)


@triton.jit
def _dithered(x, residual, codes, threshold, level, status, n, size, BYTES: tl.constexpr, program=None):
    byte, i = places(BYTES, 2, program)
    value = compensate(x, residual, status, i, n)
    code = _beyond(value, tl.load(level) * dither(i), False)
    _store(code, i < n, codes, byte, size)
    if residual is not None:
        tl.store(residual + i, _kept(value, code, tl.load(threshold)), mask=i < n)


def dithered_encode(x: Tensor, codes: Tensor, level: Tensor) -> None:
    dithered_encode_feedback(x, None, codes, None, level)


def dithered_encode_feedback(
    grad: Tensor,
    residual: Tensor | None,
    codes: Tensor,
    threshold: Tensor | None,
    level: Tensor,
    status: Tensor | None = None,
) -> None:
    n, size = grad.numel(), codes.numel()
    launch(_dithered, _grid(size), grad, residual, codes, threshold, level, status, n, size, BYTES=BYTES)


@triton.jit
def _add(
    codes,
    stride,
    steps,
    steps_stride,
    ranks,
    out,
    n,
    size,
    step: tl.float32,
    FRESH: tl.constexpr,
    BYTES: tl.constexpr,
    program=None,
):
    byte, i = places(BYTES, 2, program)
    inside = i < n
    total = begin_sum_at(out, i, n, FRESH)
    for _ in range(ranks):
        code = unpack(tl.load(codes + byte, mask=byte < size), 2)
        own = step
        if steps is not None:
            own = tl.load(steps) * step
            steps += steps_stride
        total += tl.where(code > 1, (2 * code - 5).to(tl.float32) * own, 0.0)
        codes += stride
    tl.store(out + i, total, mask=inside)


def twobit_add_decoded(
    codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None, fresh: bool = False
) -> None:
    ranks, size = codes.shape
    rows = codes, codes.stride(0), steps, 0 if steps is None else steps.stride(0)
    step = float32(float32(scale) * float32(threshold))
    launch(_add, _grid(size), *rows, ranks, out, out.numel(), size, step, FRESH=fresh, BYTES=BYTES)


def _grid(size: int) -> tuple[int]:
    """The grid with a program for every ``BYTES`` bytes of codes."""
    return (triton.cdiv(size, BYTES),)
