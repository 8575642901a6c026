"""Operations on elements beyond a threshold or chosen at random: mark them, write them side by side, and add them.

Marks: a bit for each element, the first of 8 in the lowest bit of a byte, and a count for each segment. Two operations
make a payload: one marks, and says by its counts how many there are; ``take_marked`` then writes them to where they
belong. What is between is a thirty-second of the tensor.

A stream of what exceeds a threshold is in whichever form is smallest; it starts with the form and the count k:

    0    float32[n], 0 where nothing is sent; k is n
    1    float32[k], then a bit for each element
    2    float32[k], then the count of each segment of 65536 elements as int32, and the low 16 bits of each place

The values come first, so that they can be written before it is known how many there are.
"""

from typing import Annotated

import torch
from torch import Tensor

from gradwire.compressors.sparse.ops import add_inside
from gradwire.contrib.compressors.sparse._draws import HEADER, choose, read_seed, write_seed
from gradwire.contrib.compressors.sparse._exponents import codes_of, unpack_stream, values_of
from gradwire.errors import require
from gradwire.kernels.arguments import Flat, Floats, Rows, Status, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.bits import pack, pack_bits, unpack_bits
from gradwire.kernels.dither import dither
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.philox4x32 import philox_words
from gradwire.kernels.segments import SEGMENT, segments, write_places
from gradwire.kernels.sums import lane_sums

__all__ = [
    "BITMAP",
    "BLOCK",
    "DENSE",
    "capacity",
    "exponent_add_decoded",
    "exponent_encode",
    "mark_beyond",
    "randomk_add_decoded",
    "randomk_encode",
    "tail_moments",
    "tail_segments",
    "take_beyond",
    "take_drawn",
    "take_marked",
    "threshold_add_decoded",
    "threshold_encode",
    "threshold_encode_feedback",
]

DENSE, BITMAP, BLOCK = 0, 1, 2
_HEAD = 8

TAIL_SEGMENT = 1024

Values = Annotated[Tensor, Flat(torch.float32, "k", written=True)]
Indices = Annotated[Tensor, Flat(torch.int16, "k", written=True)]
Counts = Annotated[Tensor, Flat(torch.int32, "segments(n)", written=True)]
Wholes = Annotated[Tensor, Flat(torch.float32, "whole_k", written=True)]
WholeIndices = Annotated[Tensor, Flat(torch.int16, "whole_k", written=True)]
Bitmap = Annotated[Tensor, Flat(torch.uint8, "-(-n // 8)", written=True)]
GivenBitmap = Annotated[Tensor, Flat(torch.uint8, "-(-n // 8)")]
GivenCounts = Annotated[Tensor, Flat(torch.int32, "segments(n)")]
Used = Annotated[Tensor, Flat(torch.int32, "1", written=True)]
Stream = Annotated[Tensor, Flat(torch.uint8, "capacity(n)", written=True)]
Level = Annotated[Tensor | None, Flat(torch.float32, "1")]
Streams = Annotated[Tensor, Rows(torch.uint8, "length")]
Number = Annotated[Tensor, Rows(torch.int32, "1")]
Seed = Annotated[Tensor, Flat(torch.int64, "1")]
Run = Annotated[int, Where("run >= 1", "an integer >= 1")]


def _write_marks(marked: Tensor, bitmap: Tensor, counts: Tensor) -> None:
    """Write bools as bits, and the number of set bits in each segment."""
    pack_bits(marked, bitmap)
    padded = torch.nn.functional.pad(marked, (0, -marked.numel() % SEGMENT))
    counts.copy_(padded.view(counts.numel(), -1).sum(1) if counts.numel() else counts)


def _beyond(x: Tensor, high: float, low: float) -> Tensor:
    """A mask of the elements with x >= high, x <= -low, or NaN."""
    return ~((x > float32(-low)) & (x < float32(high)))


def _drawn(x: Tensor, s: float, key: int, step: int) -> tuple[Tensor, Tensor]:
    """Masks of the elements with |x| >= s, and of the others with |x| > u s, u random in (0, 1)."""
    s = float32(s)
    words = philox_words(0, -(-x.numel() // 4), key, step, x.device).view(-1)[: x.numel()]
    u = (words ^ 2**31).double().add_(0.5).mul_(2.0**-32)
    above = x.abs() >= s
    return above, (u.mul_(s) < x.abs()) & ~above


def _take_where(x: Tensor, marked: Tensor, counts: Tensor, values: Tensor, indices: Tensor) -> None:
    """Write the counts of the marked elements, and as many of these as fit."""
    places = marked.nonzero().view(-1)
    low = torch.empty(places.numel(), dtype=torch.int16, device=x.device)
    write_places(places, low, counts)
    places = places[: values.numel()]
    values[: places.numel()] = x[places]
    indices[: places.numel()] = low[: places.numel()]


@declared
def mark_beyond(x: Floats, bitmap: Bitmap, counts: Counts, high: float, low: float) -> None:
    """Mark x >= high, x <= -low, and NaN.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8): bit i % 8 of byte i / 8 is element i; the bits beyond the last are 0.
        counts: int32, ceil(n / 65536): how many are marked in each segment of 65536 elements.
        high: rounded to float32.
        low: rounded to float32; with ``low = high`` it is magnitudes that are compared.

    >>> bitmap, counts = torch.empty(1, dtype=torch.uint8), torch.empty(1, dtype=torch.int32)
    >>> mark_beyond(torch.tensor([1.0, -3.0, 2.0, 0.0]), bitmap, counts, high=2.0, low=3.0)
    >>> bitmap.tolist(), counts.tolist()
    ([6], [2])
    """
    _write_marks(_beyond(x, high, low), bitmap, counts)


@declared
def take_marked(x: Floats, bitmap: GivenBitmap, counts: GivenCounts, values: Values, indices: Indices) -> None:
    """Write the values of the marked elements, and the low 16 bits of their indices.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8), as ``mark_beyond`` writes it.
        counts: int32, ceil(n / 65536), as ``mark_beyond`` writes them with it.
        values: float32, as many as the counts add up to.
        indices: int16, as many.

    >>> bitmap, counts = torch.tensor([6], dtype=torch.uint8), torch.tensor([2], dtype=torch.int32)
    >>> values, indices = torch.empty(2), torch.empty(2, dtype=torch.int16)
    >>> take_marked(torch.tensor([1.0, -3.0, 2.0, 0.0]), bitmap, counts, values, indices)
    >>> values.tolist(), indices.tolist()
    ([-3.0, 2.0], [1, 2])
    """
    places = unpack_bits(bitmap, x.numel()).nonzero().view(-1)
    values.copy_(x[places])
    write_places(places, indices, torch.empty_like(counts))


@declared
def take_beyond(x: Floats, counts: Counts, values: Values, indices: Indices, high: float, low: float) -> None:
    """Write the elements that ``mark_beyond`` marks: x >= high, x <= -low, and NaN.

    Args:
        x: float32, n elements; not changed.
        counts: int32, ceil(n / 65536): how many there are in each segment of 65536 elements.
        values: float32, room for the first of them; what is not needed stays as it is.
        indices: int16, as many: the low 16 bits of their indices.
        high: rounded to float32.
        low: rounded to float32.

    >>> counts, values, indices = torch.empty(1, dtype=torch.int32), torch.zeros(3), torch.zeros(3, dtype=torch.int16)
    >>> take_beyond(torch.tensor([1.0, -3.0, 2.0, 0.0]), counts, values, indices, high=2.0, low=3.0)
    >>> counts.tolist(), values.tolist(), indices.tolist()
    ([2], [-3.0, 2.0, 0.0], [1, 2, 0])
    """
    _take_where(x, _beyond(x, high, low), counts, values, indices)


@declared
def take_drawn(
    x: Floats,
    whole_counts: Counts,
    whole_values: Wholes,
    whole_indices: WholeIndices,
    counts: Counts,
    values: Values,
    indices: Indices,
    s: float,
    key: int,
    step: int,
) -> None:
    """Write |x| >= s to the first entries, and each other element with probability |x| / s to the second.

    Element i is kept where |x_i| > u s in float64, with u = (w + 2^31 + 1/2) / 2^32 for the int32 w that ``philox``
    gives at place i. So u is never 0 or 1: zeros are never kept, and the probability is exact to 2^-32.

    Args:
        x: float32, n elements; not changed.
        whole_counts: int32, ceil(n / 65536): how many reach s in each segment.
        whole_values: float32, room for the first of them; what is not needed stays as it is.
        whole_indices: int16, as many: the low 16 bits of their indices.
        counts: int32, ceil(n / 65536): how many of the others are kept.
        values: float32, as ``whole_values``.
        indices: int16, as ``whole_indices``.
        s: > 0, rounded to float32.
        key: key of the random stream.
        step: step of the random stream.

    >>> counts, whole_counts = torch.empty(1, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
    >>> values, indices = torch.zeros(3), torch.zeros(3, dtype=torch.int16)
    >>> x = torch.tensor([1.0, -3.0, 2.0, 0.0])
    >>> take_drawn(x, whole_counts, values, indices, counts, values.clone(), indices.clone(), 2.0, key=1, step=0)
    >>> values.tolist(), indices.tolist(), counts.item() <= 1
    ([-3.0, 2.0, 0.0], [1, 2, 0], True)
    """
    whole, kept = _drawn(x, s, key, step)
    _take_where(x, whole, whole_counts, whole_values, whole_indices)
    _take_where(x, kept, counts, values, indices)


def tail_segments(n: int) -> int:
    """The number of rows of the tail moments of ``n`` elements."""
    return -(-n // TAIL_SEGMENT)


@declared
def tail_moments(
    x: Floats,
    table: Annotated[Tensor, Flat(torch.float32, "4 * tail_segments(n)", written=True)],
    low: float,
    high: float,
    unit: float,
) -> None:
    """Measure each segment of 1024 elements: the largest |x|, and over low < |x| < high the count and two sums.

    The sums are those of y and of y^2, y = (|x| - low) * unit, in float32 and in the order of 16 lanes.

    Args:
        x: float32, n elements; not changed.
        table: float32, 4 * ceil(n / 1024): four numbers for each segment, in this order. A NaN is the largest of all.
        low: >= 0, rounded to float32.
        high: rounded to float32; may be infinite.
        unit: a power of two, so that squares neither overflow nor vanish.

    >>> table = torch.empty(4)
    >>> tail_moments(torch.tensor([3.0, -5.0, 1.0, 9.0]), table, low=2.0, high=6.0, unit=1.0)
    >>> table.tolist()
    [9.0, 2.0, 4.0, 10.0]
    """
    low, high, unit = float32(low), float32(high), float32(unit)
    parts = torch.nn.functional.pad(x, (0, -x.numel() % TAIL_SEGMENT)).view(-1, TAIL_SEGMENT)
    sizes, rows = parts.abs(), table.view(-1, 4)
    inside = (sizes > low) & (sizes < high)
    y = torch.where(inside, (sizes - low) * unit, 0.0)
    rows[:, 0] = (parts.view(torch.int32) & 0x7FFFFFFF).amax(1).view(torch.float32)
    rows[:, 1], rows[:, 2], rows[:, 3] = inside.sum(1), lane_sums(y), lane_sums(y * y)


@declared
def exponent_encode(
    x: Floats,
    bitmap: GivenBitmap,
    counts: GivenCounts,  # noqa: ARG001  (the kernels begin segments by them)
    codes: Annotated[Tensor, Flat(torch.uint8, "pairs", written=True)],
    top: int,
) -> None:
    """Write ``top`` minus the exponent of |x|, rounded to a power of two, plus 8 if x < 0.

    Args:
        x: float32, n elements; not changed.
        bitmap: uint8, ceil(n / 8), as ``mark_beyond`` writes it.
        counts: int32, ceil(n / 65536), as ``mark_beyond`` writes them with it.
        codes: uint8, half of what the counts add up to, rounded up: two codes to a byte, the first in its lower half.
        top: 0 to 255; the marked elements have this exponent, or up to 7 less.

    >>> bitmap, counts = torch.tensor([5], dtype=torch.uint8), torch.tensor([2], dtype=torch.int32)
    >>> codes = torch.empty(1, dtype=torch.uint8)
    >>> exponent_encode(torch.tensor([4.0, 0.0, -1.1]), bitmap, counts, codes, top=129)
    >>> codes.tolist()
    [160]
    """
    codes.copy_(pack(codes_of(x[unpack_bits(bitmap, x.numel())], top), 4))


@declared
def exponent_add_decoded(streams: Streams, used: Number, tops: Number, out: Written, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out = out + scale * sign * 2^(top - code) for each set bit.

    Bytes from a peer are safe whatever they are: what lies beyond ``used`` does not exist.

    Args:
        streams: uint8, (W, length), rows contiguous: ceil(n / 8) bytes as of ``mark_beyond``, then the codes that
            ``exponent_encode`` writes for them.
        used: int32, (W, 1): the bytes in use of each row.
        tops: int32, (W, 1): that of each encoder; 255 decodes to NaN.
        out: float32, n elements.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    >>> out, used = torch.zeros(3), torch.tensor([[2]], dtype=torch.int32)
    >>> exponent_add_decoded(torch.tensor([[5, 160]], dtype=torch.uint8), used, used + 127, out, 0.5)
    >>> out.tolist()
    [2.0, 0.0, -0.5]
    """
    for stream, length, top in zip(streams, used.view(-1).tolist(), tops.view(-1).tolist(), strict=True):
        places, codes = unpack_stream(stream[: max(length, 0)], out.numel())
        out[places] += values_of(codes, top) * float32(scale)


def capacity(n: int) -> int:
    """The number of bytes that suffices for any ``n`` elements.

    >>> capacity(10)
    48
    """
    return _HEAD + 4 * n


def _exceeds(x: Tensor, threshold: float, level: Tensor | None) -> Tensor:
    """A mask of the elements with |x| above the threshold, or at or above the level times their dither, or NaN."""
    if level is None:
        return ~(x.abs() <= float32(threshold))
    return ~(x.abs() < level * dither(torch.arange(x.numel(), device=x.device)))


def _write_sent(x: Tensor, sent: Tensor, stream: Tensor) -> int:
    """Write the elements of x to be sent to the front of ``stream``; return the number of bytes."""
    n, places = x.numel(), sent.nonzero().view(-1)
    k = places.numel()
    sizes = [4 * n, 4 * k + -(-n // 8), 6 * k + 4 * segments(n)]
    form = sizes.index(min(sizes))
    values = torch.where(sent, x, 0.0) if form == DENSE else x[places]
    stream[:_HEAD].view(torch.int32).copy_(torch.tensor([form, values.numel()], dtype=torch.int32, device="cpu"))
    end = _HEAD + 4 * values.numel()
    stream[_HEAD:end] = values.view(torch.uint8)
    rest = stream[end : _HEAD + sizes[form]]
    if form == BITMAP:
        pack_bits(sent, rest)
    elif form == BLOCK:
        counts = torch.empty(segments(n), dtype=torch.int32, device=x.device)
        indices = torch.empty(k, dtype=torch.int16, device=x.device)
        write_places(places, indices, counts)
        rest.copy_(torch.cat([counts.view(torch.uint8), indices.view(torch.uint8)]))
    return _HEAD + sizes[form]


def _read_sent(stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Read indices and their values; of invalid bytes, as many as are valid. Bytes beyond the stream are 0."""
    stream = torch.nn.functional.pad(stream, (0, max(0, capacity(n) - stream.numel())))
    form, k = stream[:_HEAD].clone().view(torch.int32).tolist()
    k = k if 0 <= k <= n else 0
    end = _HEAD + 4 * k
    values, rest = stream[_HEAD:end].clone().view(torch.float32), stream[end:]
    places = values.new_empty(0, dtype=torch.int64)
    if form == DENSE:
        places = torch.arange(k, device=stream.device)
    elif form == BITMAP:
        places = unpack_bits(rest, n).nonzero().view(-1)[:k]
    elif form == BLOCK:
        places = _blocks(rest, n, k)
    return places, values[: places.numel()]


def _blocks(rest: Tensor, n: int, k: int) -> Tensor:
    """The indices of a block form that are below n; those of counts beyond k are left out."""
    middle = 4 * segments(n)
    counts = _padded(rest[:middle], middle).view(torch.int32).long()
    low = _padded(rest[middle : middle + 2 * k], 2 * k).view(torch.int16).long() & 0xFFFF
    ends = counts.clamp_(min=0).cumsum(0).clamp_(max=k)
    starts = torch.arange(counts.numel(), device=rest.device) * SEGMENT
    places = starts.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
    return places + low[: places.numel()]


def _padded(data: Tensor, count: int) -> Tensor:
    return torch.nn.functional.pad(data, (0, count - data.numel()))


@declared
def threshold_encode(x: Floats, used: Used, stream: Stream, threshold: float, level: Level = None) -> None:
    """Write the elements with |x| > v and their indices; a NaN is one of them.

    The places are a bitmap or 16 bits each, or every element is written, whichever is smallest; ``docs/wire.md`` has
    the forms under ``threshold``.

    Args:
        x: float32, n elements; not changed.
        used: int32, 1 element: the bytes of ``stream`` that are in use.
        stream: uint8, 8 + 4 n, at a multiple of 4 bytes; what is not in use is of no meaning.
        threshold: v >= 0, in the unit of x; rounded to float32.
        level: float32, 1 element, l > 0, or None. With it the elements with |x_i| >= d_i l are written, in place of
            those above v; d_i in [1, 2) as in ``dithered_encode``.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(24, dtype=torch.uint8)
    >>> threshold_encode(torch.tensor([1.0, -5.0, 3.0, -2.0]), used, stream, threshold=3.0)
    >>> used.item(), stream[4].item(), stream[8:12].view(torch.float32).item(), stream[12].item()
    (13, 1, -5.0, 2)

    Source: A. Dutta et al., "On the Discrepancy between the Theoretical Analysis and Practical Implementations of
    Compressed Communication for Distributed Deep Learning", AAAI 2020.
    """
    used.fill_(_write_sent(x, _exceeds(x, threshold, level), stream))


@declared
def threshold_encode_feedback(
    grad: Written,
    residual: Written,
    used: Used,
    stream: Stream,
    threshold: float,
    status: Status = None,
    level: Level = None,
) -> None:
    """Encode x = residual + grad as ``threshold_encode`` does; the residual becomes x with +0 where it was sent.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        used: int32, 1 element.
        stream: uint8, 8 + 4 n, at a multiple of 4 bytes.
        threshold: v >= 0, in the unit of grad; rounded to float32.
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.
        level: float32, 1 element, l > 0, or None, as in ``threshold_encode``.

    >>> residual, used, stream = torch.zeros(3), torch.empty(1, dtype=torch.int32), torch.empty(20, dtype=torch.uint8)
    >>> threshold_encode_feedback(torch.tensor([1.0, -5.0, 3.0]), residual, used, stream, threshold=3.0)
    >>> residual.tolist(), stream[8:12].view(torch.float32).item()
    ([1.0, 0.0, 3.0], -5.0)

    Source: as ``threshold_encode``.
    """
    x = compensate(grad, residual, status)
    sent = _exceeds(x, threshold, level)
    used.fill_(_write_sent(x, sent, stream))
    residual.copy_(torch.where(sent, 0.0, x))


@declared
def threshold_add_decoded(streams: Streams, out: Written, scale: float) -> None:
    """Add the payloads of all ranks, rank 0 first: out[place] = out[place] + scale * value.

    Bytes from a peer are safe whatever they are; what makes no sense is left out.

    Args:
        streams: uint8, (W, length), rows contiguous, as ``threshold_encode`` writes them; with what is not in use or
            without.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> used, stream = torch.empty(1, dtype=torch.int32), torch.empty(20, dtype=torch.uint8)
    >>> threshold_encode(torch.tensor([1.0, -5.0, 3.0]), used, stream, 3.0)
    >>> out = torch.zeros(3)
    >>> threshold_add_decoded(stream.unsqueeze(0), out, scale=0.5)
    >>> out.tolist()
    [0.0, -2.5, 0.0]

    Source: as ``threshold_encode``.
    """
    for row in streams:
        places, values = _read_sent(row, out.numel())
        inside = places < out.numel()
        out.index_add_(0, places[inside], (values * float32(scale))[inside])


def _whole_runs(op: str, k: int, run: int, n: int) -> None:
    whole = k % run == 0 and k < n + run
    require(whole, f"{op}.values", f"whole runs of {run}, at most one for each element", k)


@declared(check=_whole_runs)
def randomk_encode(
    x: Floats,
    values: Values,
    header: Annotated[Tensor, Flat(torch.float32, f"{HEADER}", written=True)],
    seed: Seed,
    run: Run,
    scaled: bool,
    scale: float,
) -> None:
    """Write the elements that the seed chooses: in each of k strata a run of neighbours.

        value = (scale * x) * (scaled: units in the stratum, else 1)

    Args:
        x: float32, n elements; not changed.
        values: float32, k * run: run after run, in order of their places; what lies beyond the end of x is 0.
        header: float32, 5 elements: 1, and the bytes of the seed.
        seed: int64, 1 element: 0 to 2**32 - 1; of other numbers the lowest 32 bits count.
        run: elements that are chosen together.
        scaled: true: multiply the elements, so that the mean over all seeds is x.
        scale: factor of x, rounded to float32.

    >>> values, header = torch.empty(2), torch.empty(5)
    >>> randomk_encode(torch.arange(8.0), values, header, torch.tensor([258]), run=1, scaled=False, scale=1.0)
    >>> values.tolist(), header.tolist()
    ([3.0, 5.0], [1.0, 2.0, 1.0, 0.0, 0.0])

    Source: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    write_seed(seed, header)
    first, sizes = choose(seed & 0xFFFFFFFF, x.numel(), values.numel() // run, run)
    where = first.unsqueeze(1) + torch.arange(run, device=x.device)
    inside = where < x.numel()
    found = x[where.clamp_(max=max(x.numel() - 1, 0))] * float32(scale)
    if scaled:
        found *= sizes.unsqueeze(1).float()
    values.view(-1, run).copy_(torch.where(inside, found, 0.0))


@declared(check=_whole_runs)
def randomk_add_decoded(
    values: Annotated[Tensor, Rows(torch.float32, "k")],
    header: Annotated[Tensor, Rows(torch.float32, f"{HEADER}")],
    out: Written,
    run: Run,
    scale: float,
) -> None:
    """Add each payload at the indices of its seed: out[place] = out[place] + scale * value.

    The payload may be the sum of those of many ranks with one seed: the header's first number then counts them.

    Args:
        values: float32, (W, k * run) with contiguous rows, as ``randomk_encode`` writes them.
        header: float32, (W, 5) with contiguous rows.
        out: float32, n elements.
        run: elements that are chosen together.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out = torch.zeros(8)
    >>> randomk_add_decoded(torch.tensor([[3.0, 5.0]]), torch.tensor([[2.0, 4, 2, 0, 0]]), out, run=1, scale=0.5)
    >>> out.tolist()
    [0.0, 0.0, 0.0, 1.5, 0.0, 2.5, 0.0, 0.0]

    Source: as ``randomk_encode``.
    """
    for row, head in zip(values, header, strict=True):
        first, _ = choose(read_seed(head), out.numel(), row.numel() // run, run)
        where = (first.unsqueeze(1) + torch.arange(run, device=out.device)).view(-1)
        add_inside(out, where, row * float32(scale))
