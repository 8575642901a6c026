"""Operations that all families share: sums, means and scales of gradients, random words, and checks
for finite values.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.feedback import advance, compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.philox4x32 import philox_words
from gradwire.kernels.stored import keep_unless, row_bytes, write
from gradwire.kernels.sums import SUM_BLOCK, block_sums, mean_of_sums, sum_of_sums

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

Beta = Annotated[float, Where("0 <= beta < 1 - 2**-25", "in [0, 1) in float32")]
AnyFloats = Annotated[Tensor, Flat((torch.float32, torch.bfloat16, torch.float16), "n")]
Words = Annotated[Tensor, Flat(torch.int32, "n", written=True)]

_CHUNK = 16384
"""Elements that ``swap`` holds a second time: no step may allocate as much as a gradient."""

_MOST = 100
"""The largest exponent of the power of two in whose units squares are added."""

_LARGEST = 2.0**60
"""The largest square root of a square, in units that are near the size of the scales: no square overflows."""

_GROWN = 4.0
"""The mean square of what arrives, over that of the scales, from which on gradients have grown and not only varied."""

_LEAST = 2.0**-100
"""The smallest scale: a gradient that comes after many steps of zeros can be divided by it."""


@declared(merges=True)
def accumulate(grad: Written, residual: Written, status: Status = None) -> None:
    """Add the gradient to the residual, in one pass: residual = residual + grad.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    >>> grad, residual = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -2.0])
    >>> accumulate(grad, residual, torch.zeros(1, dtype=torch.int32))
    >>> grad.tolist(), residual.tolist()
    ([0.5, -2.0], [1.5, 0.0])
    """
    residual.copy_(compensate(grad, residual, status))


@declared(merges=True)
def add_scaled(x: Written, y: Floats, factor: float, status: Status = None) -> None:
    """Add a multiple of a tensor to another one: x = x + factor * y, rounded twice.

    Args:
        x: float32, n elements.
        y: float32, n elements, not overlapping ``x``.
        factor: any number; it is rounded to float32.
        status: int32, 1 element, or None: bit 0 is set where the sum is not finite.

    >>> x = torch.tensor([1.0, 2.0])
    >>> add_scaled(x, torch.tensor([4.0, -2.0]), 0.5)
    >>> x.tolist()
    [3.0, 1.0]
    """
    x.add_(y * float32(factor))
    if status is not None:
        status |= ~torch.isfinite(x).all()


Kept = Annotated[Tensor | None, Flat(torch.float32, "n", written=True, shaped=True)]


@declared(merges=True)
def accumulate_momentum(
    grad: Written, momentum: Written, undo: Kept, beta: Beta, nesterov: bool, status: Status = None
) -> None:
    """Add a gradient to a momentum: u = beta u + g, and g becomes u; with ``nesterov``, u = beta (u + g) and g + u.

    Args:
        grad: float32, n elements: g; becomes what a velocity grows by.
        momentum: float32, n elements: u.
        undo: float32, n elements: receives the old momentum; or None.
        beta: weight of the old momentum, in [0, 1), rounded to float32. Larger: a longer memory.
        nesterov: look ahead.
        status: int32, 1 element, or None: bit 0 is set where what ``grad`` becomes is not finite.

    >>> grad, momentum, undo = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]), torch.empty(2)
    >>> accumulate_momentum(grad, momentum, undo, 0.5, nesterov=False)
    >>> grad.tolist(), momentum.tolist(), undo.tolist()
    ([3.0, 2.0], [3.0, 2.0], [4.0, 0.0])

    Source: Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression: Reducing the Communication
    Bandwidth for Distributed Training", ICLR 2018.
    """
    now = (momentum + grad) * float32(beta) if nesterov else momentum * float32(beta) + grad
    if undo is not None:
        undo.copy_(momentum)
    momentum.copy_(now)
    grad.copy_(grad + now if nesterov else now)
    if status is not None:
        status |= ~torch.isfinite(grad).all()


@declared(merges=True)
def mask_momentum(velocity: Written, momentum: Written, sent: Floats) -> None:
    """Subtract what was sent from a velocity, and forget the momentum there: v = v - s, and u = 0 where s is not 0.

    Args:
        velocity: float32, n elements: v.
        momentum: float32, n elements: u.
        sent: float32, n elements: s, as the receivers decode it.

    >>> velocity, momentum = torch.tensor([3.0, 2.0]), torch.tensor([1.0, 2.0])
    >>> mask_momentum(velocity, momentum, torch.tensor([3.0, 0.0]))
    >>> velocity.tolist(), momentum.tolist()
    ([0.0, 2.0], [0.0, 2.0])

    Source: as ``accumulate_momentum``.
    """
    velocity.sub_(sent)
    momentum.masked_fill_(sent != 0, 0.0)


When = Annotated[Tensor | None, Flat(torch.bool, "1")]


@declared(merges=True)
def copy_where(source: Floats, target: Written, when: When = None) -> None:
    """Copy a tensor if a flag on the device is set: target = source if when.

    Nothing waits for the device, and where the flag is not set nothing is read or written.

    Args:
        source: float32, n elements.
        target: float32, n elements, not overlapping ``source``.
        when: bool, 1 element; None: always.

    >>> source, target = torch.ones(2), torch.zeros(2)
    >>> copy_where(source, target, torch.tensor([False]))
    >>> target.tolist()
    [0.0, 0.0]
    """
    target.copy_(source if when is None else torch.where(when, source, target))


@declared(merges=True)
def fill_where(out: Written, value: float, when: When = None) -> None:
    """Fill a tensor if a flag on the device is set: out = value if when.

    Args:
        out: float32, n elements.
        value: any number; it is rounded to float32.
        when: bool, 1 element; None: always.

    >>> out = torch.ones(2)
    >>> fill_where(out, 0.5, torch.tensor([True]))
    >>> out.tolist()
    [0.5, 0.5]
    """
    if when is None:
        out.fill_(value)
    else:
        out.masked_fill_(when, value)


@declared(native=False, merges=True)
def begin_sum(out: Written, residual: Kept, bad: Annotated[Tensor, Flat(torch.bool, "1")]) -> None:
    """Begin a sum with zeros; if a flag on the device is set with NaN, and with the residual taken back before.

    residual = out if bad;  out = NaN if bad, else 0.

    Args:
        out: float32, n elements: the gradient as ``accumulate`` leaves it.
        residual: float32, n elements; or None.
        bad: bool, 1 element.

    >>> out, residual = torch.ones(2), torch.zeros(2)
    >>> begin_sum(out, residual, torch.tensor([True]))
    >>> out.tolist(), residual.tolist()
    ([nan, nan], [1.0, 1.0])
    """
    if residual is not None:
        residual.copy_(torch.where(bad, out, residual))
    out.zero_().masked_fill_(bad, torch.nan)


@declared(merges=True)
def momentum_update(grad: Written, momentum: Written, beta: Beta, status: Status = None) -> None:
    """Update the running mean with a gradient: momentum = beta * momentum + (1 - beta) * grad.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old momentum.
        momentum: float32, n elements.
        beta: weight of the old momentum, in [0, 1); beta and 1 - beta are rounded to float32. Larger: a longer memory.
        status: int32, 1 element, or None: bit 0 is set where the new momentum is not finite. Copying ``grad`` back to
            ``momentum`` then undoes the step.

    >>> grad, momentum = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    >>> momentum_update(grad, momentum, 0.75)
    >>> momentum
    tensor([1.0000, 0.5000])

    Source: J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019.
    """
    advance(grad, momentum, beta, status)


@declared(merges=True)
def nonfinite(
    x: AnyFloats, status: Annotated[Tensor, Flat(torch.int32, "1", written=True)], factor: float = 1.0
) -> None:
    """Set bit 0 of ``status`` if x has a NaN or an infinity: status |= any(!isfinite(factor x)).

    Args:
        x: float32, bfloat16 or float16, n elements.
        status: int32, 1 element; never cleared.
        factor: number with which numbers of 32 bits are multiplied before they are looked at; it is rounded to float32.

    >>> status = torch.zeros(1, dtype=torch.int32)
    >>> nonfinite(torch.tensor([1.0, float("inf")]), status)
    >>> status
    tensor([1], dtype=torch.int32)
    """
    status |= ~torch.isfinite(x * float32(factor) if x.dtype == torch.float32 else x).all()


@declared(merges=True)
def philox(out: Words, key: int, step: int, offset: int = 0) -> None:
    """Fill ``out`` with Philox4x32-10: word i is word i % 4 of the counter (i // 4 + offset, step) under ``key``.

    Args:
        out: int32, any size; each element takes the bits of one 32-bit word.
        key: number of the stream, a signed 64-bit integer.
        step: step of the stream, a signed 64-bit integer: the upper half of the counter.
        offset: the first counter, so that a stream can be entered at word 4 * offset.

    >>> words = torch.empty(4, dtype=torch.int32)
    >>> philox(words, key=0, step=0)
    >>> [f"{word & 0xffffffff:08x}" for word in words.tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']

    Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    words = philox_words(offset, -(-out.numel() // 4), key, step, out.device)
    out.copy_(((words ^ 2**31) - 2**31).view(-1)[: out.numel()])


def _divisor(scale: Tensor) -> Tensor:
    """The scale, or 1 where it is 0, because nothing has arrived there yet."""
    return torch.where(scale == 0, 1.0, scale)


def _mean_magnitude(x: Tensor) -> Tensor:
    """Compute the mean of |x|, 0-dimensional, added in the order of the kernels."""
    return mean_of_sums(block_sums(x.abs(), SUM_BLOCK), x.numel())


def _mean_square(x: Tensor) -> Tensor:
    """Compute the mean of the squares in float64, in which they are exact, 0-dimensional."""
    return sum_of_sums(block_sums(x.double().square(), SUM_BLOCK)).div(max(x.numel(), 1))


@declared(merges=True)
def precondition(grad: Written, scale: Floats, status: Status = None) -> None:
    """Divide a gradient by a scale, element by element: grad = grad / scale, where a scale of 0 counts as 1.

    Args:
        grad: float32, n elements.
        scale: float32, n elements, >= 0.
        status: int32, 1 element, or None: bit 0 is set where a quotient is not finite.

    >>> grad = torch.tensor([1.0, -2.0])
    >>> precondition(grad, torch.tensor([4.0, 0.0]))
    >>> grad.tolist()
    [0.25, -2.0]
    """
    grad.div_(_divisor(scale))
    if status is not None:
        status |= ~torch.isfinite(grad).all()


@declared(merges=True)
def precondition_update(
    out: Written,
    scale: Written,
    bad: Annotated[Tensor, Flat(torch.bool, "1")],
    beta: Beta,
    floor: Annotated[float, Where("0 <= floor <= 1", "in [0, 1]")],
) -> None:
    """Multiply by a scale, and update the scale: out = out scale, scale^2 = beta scale^2 + (1 - beta) out^2.

    Where all scales are 0 nothing has arrived before: ``out`` stays, and all scales become its mean magnitude. Later
    none is below ``floor`` times their root mean square, nor below 2^-100. Where the mean square of what arrives is
    more than 4 times theirs, the old scales are first made as large as that, so that they do not become what single
    elements were in one step. Squares are made in units of a power of two that is near the size of the scales, so that
    they neither vanish nor overflow; no ``out`` counts for more than 2^60 of them, and one that is not finite not at
    all.

    Args:
        out: float32, n elements.
        scale: float32, n elements, >= 0.
        bad: bool, 1 element: whether the scales stay as they are.
        beta: weight of the old mean square, in [0, 1); beta and 1 - beta are rounded to float32. Larger: a longer
            memory.
        floor: least scale over their root mean square, in [0, 1].

    >>> out, scale = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 7.0])
    >>> precondition_update(out, scale, torch.tensor([False]), 0.0, 1.0)
    >>> out.tolist(), scale.tolist()
    ([1.0, -7.0], [5.0, 7.0])
    """
    level, first = _mean_square(scale), _mean_magnitude(out)
    out.mul_(_divisor(scale))
    arrived = _mean_square(torch.where(out.isfinite(), out, 0.0))
    size = torch.where(arrived > _GROWN * level, arrived, level).sqrt_()
    exponent = torch.frexp(size).exponent.clamp(-_MOST, _MOST)
    unit, inverse = (torch.ldexp(torch.ones_like(size), sign * exponent) for sign in (1, -1))
    grown = torch.where(arrived > _GROWN * level, size / level.sqrt(), 1.0)
    before = (scale * (grown * inverse).float()).clamp(max=_LARGEST)
    now = (out * inverse.float()).abs().clamp(max=_LARGEST)
    square = before * before * float32(beta) + now * now * float32(1 - beta)
    moved = square.double().sqrt_().float() * unit.float()  # torch's root of a float32 is not always the nearest
    least = (size * float32(floor)).float().clamp(min=_LEAST)
    moved = torch.where(moved < least, least, moved)
    moved = torch.where(out.isfinite(), moved, scale)
    known = (first > 0) & first.isfinite()
    moved = torch.where(level == 0, torch.where(known, first.clamp(min=_LEAST), 0.0), moved)
    scale.copy_(torch.where(bad, scale, moved))


@declared(merges=True)
def scale(x: Written, factor: float, status: Status = None) -> None:
    """Multiply a tensor by a number and look whether it is finite, in one pass: x = factor * x.

    Args:
        x: float32, n elements.
        factor: any number; it is rounded to float32.
        status: int32, 1 element, or None: bit 0 is set where the product is not finite.

    >>> x, status = torch.tensor([1.0, float("inf")]), torch.zeros(1, dtype=torch.int32)
    >>> scale(x, 0.5, status)
    >>> x.tolist(), status.tolist()
    ([0.5, inf], [1])
    """
    x.mul_(float32(factor))
    if status is not None:
        status |= ~torch.isfinite(x).all()


@declared(merges=True)
def swap(a: Written, b: Written) -> None:
    """Exchange the contents of two tensors, in place: a, b = b, a.

    Args:
        a: float32, n elements.
        b: float32, n elements, not overlapping a.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> swap(a, b)
    >>> a, b
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    for begin in range(0, a.numel(), _CHUNK):
        x, y = a[begin : begin + _CHUNK], b[begin : begin + _CHUNK]
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)


Codes = Annotated[Tensor, Flat(torch.uint8, "-(-n // block) * row_bytes(block)", written=True)]
CodeBlock = Annotated[int, Where("16 <= block <= 1024 and block % 16 == 0", "a multiple of 16 from 16 to 1024")]


@declared(native=False, merges=True)
def write_codes(values: Floats, stored: Codes, block: CodeBlock, when: When = None) -> None:
    """Store numbers in codes of 8 bits where a flag on the device says so: stored = codes of values if when.

    A code and a scale are those of ``gradwire.kernels.stored``, so that numbers that were read there come back as the
    bytes that they were. Nothing waits for the device, and where the flag is not set nothing is read or written.

    Args:
        values: float32, n elements; not changed.
        stored: uint8, ceil(n / block) * (block + 4); what fills the last block becomes zeros.
        block: elements that share a scale, a multiple of 16 from 16 to 1024.
        when: bool, 1 element; None: always.

    >>> stored = torch.zeros(20, dtype=torch.uint8)
    >>> write_codes(torch.tensor([127.0, -3.2]), stored, 16)
    >>> stored.view(torch.int8)[:3].tolist()
    [127, -3, 0]
    """
    rows = stored.view(-1, row_bytes(block))
    if when is None:
        write(rows, values)
    else:
        keep_unless(~when, values, rows)
