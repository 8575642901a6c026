"""Operations on one bit an element: signs, signs with the means of their block, and MXNet's 1-bit codes.

Signs: element i is bit i % 8 of byte i // 8, bit 0 the lowest; 1 where it is zero or above, whatever its sign bit, 0
where it is below or a NaN. The bits beyond the last element are 0.

1-bit codes: element i is in byte i // 8, the first in the highest bit, in whole 32-bit words; 1 above a threshold.

The sum of a block is added in one order everywhere, which ``gradwire.kernels.sums`` lays down.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from gradwire.kernels.arguments import Flat, Floats, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack_bits, unpack_bits
from gradwire.kernels.codes import pack, unpack
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.levels import spread
from gradwire.kernels.sums import SUM_BLOCK, block_sums, mean_of_sums

__all__ = [
    "mean_magnitude",
    "onebit_add_decoded",
    "onebit_encode",
    "onebit_encode_feedback",
    "scaled_sign_add_decoded",
    "scaled_sign_encode",
    "scaled_sign_encode_feedback",
    "sign_add_decoded",
    "sign_bytes",
    "sign_encode",
    "sign_encode_feedback",
    "sign_vote",
    "two_means_add_decoded",
    "two_means_encode",
    "two_means_encode_feedback",
]


def sign_bytes(n: int) -> int:
    """The number of bytes of the signs of ``n`` elements.

    >>> sign_bytes(8), sign_bytes(9)
    (1, 2)
    """
    return -(-n // 8)


Signs = Annotated[Tensor, Flat(torch.uint8, "sign_bytes(n)", written=True)]
SignsOfRanks = Annotated[Tensor, Rows(torch.uint8, "sign_bytes(n)")]
Tie = Annotated[float, Where("tie in (-1.0, 0.0, 1.0)", "-1, 0 or 1")]

_TIE = 2.0**-12


@declared(merges=True)
def sign_encode(x: Floats, codes: Signs) -> None:
    """Write which elements are zero or above: 1 if x >= 0 (also for -0.0), else 0 (also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, bit 0 the lowest; the tail is 0.

    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> sign_encode(torch.tensor([0.5, -0.5, 0.0, -0.1, 3.0]), codes)
    >>> f"{codes.item():08b}"
    '00010101'

    Source: J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for
    Non-Convex Problems", ICML 2018.
    """
    pack_bits(x >= 0, codes)


@declared(merges=True)
def sign_encode_feedback(grad: Written, residual: Written, codes: Signs, status: Status = None) -> None:
    """Encode x = residual + grad as ``sign_encode`` does and keep the rest: x >= 0: x - 1; else x + 1.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements. It ends near 1 whatever the gradients are: smaller ones drown in it.
        codes: uint8, ceil(n / 8) bytes.
        status: int32, 1 element, or None: bit 0 is set where x is not finite. Copying ``grad`` back to ``residual``
            then undoes the step.

    >>> residual, codes = torch.zeros(2), torch.empty(1, dtype=torch.uint8)
    >>> sign_encode_feedback(torch.tensor([0.75, -0.25]), residual, codes)
    >>> residual, codes.item()
    (tensor([-0.2500,  0.7500]), 1)

    Source: as ``sign_encode``.
    """
    x = compensate(grad, residual, status)
    pack_bits(x >= 0, codes)
    residual.copy_(torch.where(x >= 0, x - 1, x + 1))


@declared(merges=True)
def sign_add_decoded(codes: SignsOfRanks, out: Written, scale: float, fresh: bool = False) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale, 0: -scale).

    Args:
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``sign_encode`` writes them; bits beyond n are ignored.
        out: float32, n elements.
        scale: the step, rounded to float32; 1 / W for the mean.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out = torch.zeros(4)
    >>> sign_add_decoded(torch.tensor([[0b1001]], dtype=torch.uint8), out, 1.0)
    >>> out
    tensor([ 1., -1., -1.,  1.])

    Source: as ``sign_encode``.
    """
    step = float32(scale)
    values = torch.tensor([-step, step], dtype=torch.float32, device=out.device)
    if fresh:
        out.zero_()
    for row in codes:
        out += values[unpack_bits(row, out.numel()).int()]


@declared(merges=True)
def sign_vote(mean: Written, tie: Tie) -> None:
    """Replace each mean of signs by the sign of the majority; one that is not a number stays.

    A mean of at most 2**-12 is a tie: multiples of a rounded 1 / W do not always cancel in the last bits, and a
    majority of one among up to 2048 ranks is 2**-11 or more.

    Args:
        mean: float32, n elements.
        tie: -1, 0 or 1; what a tie becomes.

    >>> mean = torch.tensor([0.5, -0.25, 0.0])
    >>> sign_vote(mean, 1.0)
    >>> mean
    tensor([ 1., -1.,  1.])

    Source: J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication
    Efficient and Fault Tolerant", ICLR 2019.
    """
    tied = mean.abs() <= _TIE
    sign = torch.where(mean.isnan(), mean, mean.sign())
    mean.copy_(sign.masked_fill_(tied, tie))


Block = Annotated[int, Where("32 <= block <= 65536 and block % 32 == 0", "a multiple of 32 from 32 to 65536")]
Scales = Annotated[Tensor, Flat(torch.float32, "-(-n // block)", written=True)]
ScalesOfRanks = Annotated[Tensor, Rows(torch.float32, "-(-n // block)")]
Means = Annotated[Tensor, Flat(torch.float32, "2 * -(-n // block)", written=True)]
MeansOfRanks = Annotated[Tensor, Rows(torch.float32, "2 * -(-n // block)")]


def _counts(n: int, block: int, device: torch.device) -> Tensor:
    counts = torch.full((-(-n // block),), float(block), dtype=torch.float32, device=device)
    counts[-1:] = float(n - (counts.numel() - 1) * block)
    return counts


def _mean_magnitudes(x: Tensor, block: int) -> Tensor:
    """Compute the mean of |x| in each block."""
    return block_sums(x.abs(), block).div_(_counts(x.numel(), block, x.device))


def _two_means(x: Tensor, block: int) -> Tensor:
    """Compute the mean of the elements below zero in each block, then of the rest; 0 if there are none."""
    positive = x >= 0
    above = block_sums(positive.float(), block)
    sides = (x.masked_fill(positive, 0.0), _counts(x.numel(), block, x.device) - above), (x.where(positive, 0.0), above)
    means = [block_sums(side, block).div_(count).masked_fill_(count == 0, 0.0) for side, count in sides]
    return torch.stack(means, dim=1).view(-1)


def _without_levels(x: Tensor, low: Tensor, high: Tensor, block: int) -> Tensor:
    """Subtract from ``x`` the level of its sign in its block."""
    return x - torch.where(x >= 0, spread(high, x.numel(), block), spread(low, x.numel(), block))


def _add_levels(codes: Tensor, out: Tensor, low: Tensor, high: Tensor, block: int) -> None:
    """Add the level of each sign in its block."""
    n = out.numel()
    out += torch.where(unpack_bits(codes, n), spread(high, n, block), spread(low, n, block))


@declared(merges=True)
def scaled_sign_encode(x: Floats, scales: Scales, codes: Signs, block: Block) -> None:
    """Write the sign of each element and the mean magnitude of each block: C(x) = sign(x) * mean(|x|).

    An element of zero counts as positive, a NaN as negative.

    Args:
        x: float32, n elements.
        scales: float32, ceil(n / block); a block that holds a NaN or an infinity has such a scale.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, 1 where x >= 0; the tail is 0.
        block: elements of a block, a multiple of 32 from 32 to 65536; smaller: less error, 4 bytes each.

    >>> scales, codes = torch.empty(1), torch.empty(1, dtype=torch.uint8)
    >>> scaled_sign_encode(torch.tensor([-2.0, -1.0, 1.0, 3.0]), scales, codes, block=32)
    >>> scales, f"{codes.item():08b}"
    (tensor([1.7500]), '00001100')

    Source: S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", ICML 2019; by blocks, S. Zheng, Z. Huang, J. Kwok, "Communication-Efficient Distributed
    Blockwise Momentum SGD with Error-Feedback", NeurIPS 2019.
    """
    scales.copy_(_mean_magnitudes(x, block))
    pack_bits(x >= 0, codes)


@declared(merges=True)
def scaled_sign_encode_feedback(
    grad: Written, residual: Written, scales: Scales, codes: Signs, block: Block, status: Status = None
) -> None:
    """Encode x = residual + grad as ``scaled_sign_encode`` does and keep the rest: residual = x - sign(x) * mean(|x|).

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the payload does not say.
        scales: float32, as ``scaled_sign_encode`` writes them.
        codes: uint8, ceil(n / 8) bytes.
        block: elements of a block, a multiple of 32 from 32 to 65536.
        status: int32, 1 element, or None: bit 0 is set where x or one of the scales is not finite. Copying ``grad``
            back to ``residual`` then undoes the step.

    >>> residual, scales, codes = torch.zeros(4), torch.empty(1), torch.empty(1, dtype=torch.uint8)
    >>> scaled_sign_encode_feedback(torch.tensor([-2.0, -1.0, 1.0, 3.0]), residual, scales, codes, block=32)
    >>> residual
    tensor([-0.2500,  0.7500, -0.7500,  1.2500])

    Source: as ``scaled_sign_encode``.
    """
    x = compensate(grad, residual, status)
    scales.copy_(_mean_magnitudes(x, block))
    pack_bits(x >= 0, codes)
    residual.copy_(_without_levels(x, -scales, scales, block))
    if status is not None:
        status |= ~scales.isfinite().all()


@declared(merges=True)
def scaled_sign_add_decoded(
    scales: ScalesOfRanks, codes: SignsOfRanks, out: Written, block: Block, scale: float, fresh: bool = False
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * S, 0: -(scale * S)).

    Args:
        scales: float32, (W, ceil(n / block)), rows contiguous: the scale S of each block.
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``scaled_sign_encode`` writes them.
        out: float32, n elements.
        block: elements of a block, a multiple of 32 from 32 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out, codes = torch.zeros(4), torch.tensor([[0b1100]], dtype=torch.uint8)
    >>> scaled_sign_add_decoded(torch.tensor([[1.75]]), codes, out, block=32, scale=1.0)
    >>> out
    tensor([-1.7500, -1.7500,  1.7500,  1.7500])

    Source: as ``scaled_sign_encode``.
    """
    if fresh:
        out.zero_()
    for row_scales, row_codes in zip(scales, codes, strict=True):
        high = row_scales * float32(scale)
        _add_levels(row_codes, out, -high, high, block)


@declared(merges=True)
def two_means_encode(x: Floats, means: Means, codes: Signs, block: Block) -> None:
    """Write the sign of each element and two means of each block: C(x) = mean of the elements of x's sign.

    An element of zero counts as positive, a NaN as negative.

    Args:
        x: float32, n elements.
        means: float32, 2 * ceil(n / block): of each block the mean below zero, then of the rest; 0 of nothing.
        codes: uint8, ceil(n / 8) bytes; element i in bit i % 8 of byte i // 8, 1 where x >= 0; the tail is 0.
        block: elements of a block, a multiple of 32 from 32 to 65536; smaller: less error, 8 bytes each.

    >>> means, codes = torch.empty(2), torch.empty(1, dtype=torch.uint8)
    >>> two_means_encode(torch.tensor([-2.0, -1.0, 1.0, 3.0]), means, codes, block=32)
    >>> means, f"{codes.item():08b}"
    (tensor([-1.5000,  2.0000]), '00001100')

    Source: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", INTERSPEECH 2014.
    """
    means.copy_(_two_means(x, block))
    pack_bits(x >= 0, codes)


@declared(merges=True)
def two_means_encode_feedback(
    grad: Written, residual: Written, means: Means, codes: Signs, block: Block, status: Status = None
) -> None:
    """Encode x = residual + grad as ``two_means_encode`` does and keep the rest: residual = x - the mean of its side.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the payload does not say.
        means: float32, as ``two_means_encode`` writes them.
        codes: uint8, ceil(n / 8) bytes.
        block: elements of a block, a multiple of 32 from 32 to 65536.
        status: int32, 1 element, or None: bit 0 is set where x or one of the means is not finite. Copying ``grad``
            back to ``residual`` then undoes the step.

    >>> residual, means, codes = torch.zeros(4), torch.empty(2), torch.empty(1, dtype=torch.uint8)
    >>> two_means_encode_feedback(torch.tensor([-2.0, -1.0, 1.0, 3.0]), residual, means, codes, block=32)
    >>> residual
    tensor([-0.5000,  0.5000, -1.0000,  1.0000])

    Source: as ``two_means_encode``.
    """
    x = compensate(grad, residual, status)
    means.copy_(_two_means(x, block))
    pack_bits(x >= 0, codes)
    residual.copy_(_without_levels(x, means[0::2], means[1::2], block))
    if status is not None:
        status |= ~means.isfinite().all()


@declared(merges=True)
def two_means_add_decoded(
    means: MeansOfRanks, codes: SignsOfRanks, out: Written, block: Block, scale: float, fresh: bool = False
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * upper mean, 0: scale * lower mean).

    Args:
        means: float32, (W, 2 * ceil(n / block)), rows contiguous: the lower and the upper mean of each block.
        codes: uint8, (W, ceil(n / 8)), rows contiguous, as ``two_means_encode`` writes them.
        out: float32, n elements.
        block: elements of a block, a multiple of 32 from 32 to 65536, as encoded.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out, codes = torch.zeros(4), torch.tensor([[0b1100]], dtype=torch.uint8)
    >>> two_means_add_decoded(torch.tensor([[-1.5, 2.0]]), codes, out, block=32, scale=1.0)
    >>> out
    tensor([-1.5000, -1.5000,  2.0000,  2.0000])

    Source: as ``two_means_encode``.
    """
    if fresh:
        out.zero_()
    for row_means, row_codes in zip(means, codes, strict=True):
        levels = row_means * float32(scale)
        _add_levels(row_codes, out, levels[0::2], levels[1::2], block)


Codes = Annotated[Tensor, Flat(torch.uint8, "4 * -(-n // 32)", written=True)]
CodesOfRanks = Annotated[Tensor, Rows(torch.uint8, "4 * -(-n // 32)")]
Step = Annotated[Tensor | None, Flat(torch.float32, "1")]
StepsOfRanks = Annotated[Tensor | None, Rows(torch.float32, "1")]


def _threshold_of(threshold: float, step: Tensor | None) -> Tensor | float:
    """Convert a threshold in units of the step to the unit of the tensor."""
    return float32(threshold) if step is None else step * float32(threshold)


@declared(merges=True)
def onebit_encode(x: Floats, codes: Codes, threshold: float, step: Step = None) -> None:
    """Write which elements are above the threshold: 1 if x > t * step, else 0 (so also for NaN).

    Args:
        x: float32, n elements.
        codes: uint8, 4 * ceil(n / 32) bytes; element i in byte i // 8, the first in the highest bit; the tail is 0.
        threshold: t, any number, in units of the step; rounded to float32.
        step: float32, 1 element; None: 1.

    >>> codes = torch.empty(4, dtype=torch.uint8)
    >>> onebit_encode(torch.tensor([0.6, 0.5, -0.1, 0.51]), codes, 0.5)
    >>> bytes(codes.tolist()).hex()
    '90000000'

    Source: Apache MXNet, gradient compression of type "1bit" (2021); F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-Bit
    Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs", Interspeech
    2014.
    """
    pack((x > _threshold_of(threshold, step)).to(torch.uint8), 1, codes)


@declared(merges=True)
def onebit_encode_feedback(
    grad: Written, residual: Written, codes: Codes, threshold: float, status: Status = None, step: Step = None
) -> None:
    """Encode r = residual + grad and keep the rest: r > t * step: 1, r - step; else 0, r + step.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements; becomes what the codes do not say.
        codes: uint8, 4 * ceil(n / 32) bytes, as ``onebit_encode`` writes them.
        threshold: t, any number, in units of the step; rounded to float32. It does not change the steps: gradients
            smaller than they drown in them.
        status: int32, 1 element, or None: bit 0 is set where r or what is kept is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.
        step: float32, 1 element; None: 1.

    >>> residual, codes = torch.zeros(2), torch.empty(4, dtype=torch.uint8)
    >>> onebit_encode_feedback(torch.tensor([0.75, -0.25]), residual, codes, 0.5)
    >>> residual, bytes(codes.tolist()).hex()
    (tensor([-0.2500,  0.7500]), '80000000')

    Source: as ``onebit_encode``.
    """
    x = compensate(grad, residual, status)
    above, size = x > _threshold_of(threshold, step), 1 if step is None else step
    pack(above.to(torch.uint8), 1, codes)
    residual.copy_(torch.where(above, x - size, x + size))
    if status is not None:
        status |= ~residual.isfinite().all()


@declared(merges=True)
def onebit_add_decoded(
    codes: CodesOfRanks, out: Written, scale: float, steps: StepsOfRanks = None, fresh: bool = False
) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + (1: scale * step, 0: -(scale * step)).

    Args:
        codes: uint8, (W, 4 * ceil(n / 32)), rows contiguous, as ``onebit_encode`` writes them. The bits beyond element
            n are not decoded: they would mean -scale * step.
        out: float32, n elements.
        scale: rounded to float32; 1 / W for the mean.
        steps: float32, (W, 1), the step of each rank; None: 1.
        fresh: true: ``out`` counts as 0, whatever it holds, and is not read.

    >>> out = torch.zeros(4)
    >>> onebit_add_decoded(torch.tensor([[0x90, 0, 0, 0]], dtype=torch.uint8), out, 1.0)
    >>> out
    tensor([ 1., -1., -1.,  1.])

    Source: as ``onebit_encode``.
    """
    if steps is None:
        steps = torch.ones(codes.size(0), 1, dtype=torch.float32, device=out.device)
    if fresh:
        out.zero_()
    for row, step in zip(codes, steps * float32(scale), strict=True):
        out += torch.where(unpack(row, 1, out.numel()).bool(), step, -step)


@declared
def mean_magnitude(
    x: Floats,
    mean: Annotated[Tensor, Flat(torch.float32, "1", written=True)],
    residual: Annotated[Tensor | None, Flat(torch.float32, "n", shaped=True)] = None,
) -> None:
    """Compute the mean of |x|, or of |residual + x|; 0 for no elements. The order of the sum does not depend on the
    threads.

    Args:
        x: float32, n elements.
        mean: float32, 1 element.
        residual: float32, n elements, or None.

    >>> mean = torch.empty(1)
    >>> mean_magnitude(torch.tensor([1.0, -2.0]), mean)
    >>> mean
    tensor([1.5000])
    """
    mean.copy_(mean_of_sums(block_sums((x if residual is None else residual + x).abs(), SUM_BLOCK), x.numel()))
