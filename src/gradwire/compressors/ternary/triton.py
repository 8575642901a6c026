"""2-bit codes on a GPU; streams of them and 3LC are left to torch, because the place of a byte
depends on those before.
"""

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.triton.codes import pack, places, unpack
from gradwire.kernels.triton.dither import dither
from gradwire.kernels.triton.kernel_launch import BLOCK, launch
from gradwire.kernels.triton.many import mergeable
from gradwire.kernels.triton.status import compensate
from gradwire.kernels.validation import float32

__all__ = [
    "dithered_encode",
    "dithered_encode_feedback",
    "twobit_add_decoded",
    "twobit_encode",
    "twobit_encode_feedback",
]

BYTES = BLOCK // 4


@triton.jit
def _beyond(x: tl.tensor, threshold: tl.tensor, STRICT: tl.constexpr) -> tl.tensor:
    """Compute the codes: 3 if x >= t, 2 if x <= -t, else 0."""
    if STRICT:
        return tl.where(x > threshold, 3, tl.where(x < -threshold, 2, 0))
    return tl.where(x >= threshold, 3, tl.where(x <= -threshold, 2, 0))


@triton.jit
def _store(code: tl.tensor, inside: tl.tensor, codes: tl.tensor, byte: tl.tensor, size: tl.tensor) -> None:
    tl.store(codes + byte, pack(tl.where(inside, code, 0), 2), mask=byte < size)


@triton.jit
def _kept(x: tl.tensor, code: tl.tensor, sent: tl.tensor) -> tl.tensor:
    return tl.where(code == 3, x - sent, tl.where(code == 2, x + sent, x))


@triton.jit
def _encode(
    x: tl.tensor,
    codes: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    threshold: tl.float32,
    STRICT: tl.constexpr,
    BYTES: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    byte, i = places(BYTES, 2, program)
    inside = i < n
    _store(_beyond(tl.load(x + i, mask=inside, other=0.0), threshold, STRICT), inside, codes, byte, size)


@mergeable
def twobit_encode(x: Tensor, codes: Tensor, threshold: float, strict: bool = False) -> None:
    """The operation on a GPU."""
    n, size = x.numel(), codes.numel()
    launch(_encode, _grid(size), x, codes, n, size, float32(threshold), STRICT=strict, BYTES=BYTES)


@triton.jit
def _encode_feedback(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    threshold: tl.float32,
    STRICT: tl.constexpr,
    BYTES: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    byte, i = places(BYTES, 2, program)
    x = compensate(grad, residual, status, i, n)
    code = _beyond(x, threshold, STRICT)
    _store(code, i < n, codes, byte, size)
    tl.store(residual + i, _kept(x, code, threshold), mask=i < n)


@mergeable
def twobit_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: float, status: Tensor | None = None, strict: bool = False
) -> None:
    """The operation on a GPU."""
    n, size, t = grad.numel(), codes.numel(), float32(threshold)
    launch(_encode_feedback, _grid(size), grad, residual, codes, status, n, size, t, STRICT=strict, BYTES=BYTES)


@triton.jit
def _dithered(
    x: tl.tensor,
    codes: tl.tensor,
    level: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    BYTES: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    byte, i = places(BYTES, 2, program)
    inside = i < n
    least = tl.load(level) * dither(i)
    _store(_beyond(tl.load(x + i, mask=inside, other=0.0), least, False), inside, codes, byte, size)


@mergeable
def dithered_encode(x: Tensor, codes: Tensor, level: Tensor) -> None:
    """The operation on a GPU."""
    size = codes.numel()
    launch(_dithered, _grid(size), x, codes, level, x.numel(), size, BYTES=BYTES)


@triton.jit
def _dithered_feedback(
    grad: tl.tensor,
    residual: tl.tensor,
    codes: tl.tensor,
    threshold: tl.tensor,
    level: tl.tensor,
    status: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    BYTES: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    byte, i = places(BYTES, 2, program)
    x = compensate(grad, residual, status, i, n)
    code = _beyond(x, tl.load(level) * dither(i), False)
    _store(code, i < n, codes, byte, size)
    tl.store(residual + i, _kept(x, code, tl.load(threshold)), mask=i < n)


@mergeable
def dithered_encode_feedback(
    grad: Tensor, residual: Tensor, codes: Tensor, threshold: Tensor, level: Tensor, status: Tensor | None = None
) -> None:
    """The operation on a GPU."""
    n, size = grad.numel(), codes.numel()
    launch(_dithered_feedback, _grid(size), grad, residual, codes, threshold, level, status, n, size, BYTES=BYTES)


@triton.jit
def _add(
    codes: tl.tensor,
    stride: tl.tensor,
    steps: tl.tensor,
    steps_stride: tl.tensor,
    ranks: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    size: tl.tensor,
    step: tl.float32,
    FRESH: tl.constexpr,
    BYTES: tl.constexpr,
    program: tl.tensor = None,
) -> None:
    byte, i = places(BYTES, 2, program)
    inside = i < n
    total = tl.zeros((BYTES, 4), tl.float32)
    if not FRESH:
        total = tl.load(out + i, mask=inside)
    for _ in range(ranks):
        code = unpack(tl.load(codes + byte, mask=byte < size), 2)
        own = step
        if steps is not None:
            own = tl.load(steps) * step
            steps += steps_stride
        total += tl.where(code > 1, (2 * code - 5).to(tl.float32) * own, 0.0)
        codes += stride
    tl.store(out + i, total, mask=inside)


@mergeable
def twobit_add_decoded(
    codes: Tensor, out: Tensor, threshold: float, scale: float, steps: Tensor | None = None, fresh: bool = False
) -> None:
    """The operation on a GPU."""
    ranks, size = codes.shape
    rows = codes, codes.stride(0), steps, 0 if steps is None else steps.stride(0)
    step = float32(float32(scale) * float32(threshold))
    launch(_add, _grid(size), *rows, ranks, out, out.numel(), size, step, FRESH=fresh, BYTES=BYTES)


def _grid(size: int) -> tuple[int]:
    """The grid with a program for every ``BYTES`` bytes of codes."""
    return (triton.cdiv(size, BYTES),)
