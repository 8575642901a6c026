"""Method that sends the largest elements of the mean gradient, found in a count sketch that the ranks average."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import MultiRound
from gradwire.compressors.sparse.ops import topk_encode
from gradwire.contrib.compressors._together import each_or_one, together
from gradwire.contrib.compressors.sketches import ops
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.helpers import count_of
from gradwire.kernels import Each, Pieces, fill_where
from gradwire.kernels.pieces import Places, adjacent
from gradwire.kernels.segments import SEGMENT, low_bits, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["SketchedSGD"]

_LINE = 16
"""The sketch's columns come in lines of so many."""


@dataclass(frozen=True)
class SketchedSGD(MultiRound):
    """Average small sketches, read off which elements of the mean are large, and average those exactly.

    k = max(1, ceil(ratio n)), R rows of C columns, s_a(j) = +-1 and h_a(j) random functions common to all ranks:

        T[a, h_a(j)] += s_a(j) x[j];  T = mean(T);  e[j] = median over a of s_a(j) T[a, h_a(j)]
        P = the candidates k largest |e[j]|;  v = mean(x[P]);  C(x) = v where |v| is among the k largest, 0 elsewhere

    The only method here whose selection sees the mean of all ranks, with traffic that does not grow with their number.
    Both rounds are all-reduces; no index travels, since every rank reads the same ones off the same sketch. An
    estimate is off by about |x| / sqrt(C), so elements larger than that are found; the exact values of the second
    round make up for the rest. The functions change in each step, so that no two elements collide for long. The
    residual keeps this rank's x where nothing was sent, and 0 where it was.

    Each tensor has a sketch of its own, in proportion to its size; small ones find little and should travel dense. The
    paper keeps a momentum before the sketch; here momentum is the memory's business, or the optimizer's.

    Args:
        ratio: share of the elements that are sent, in (0, 1]. Lower: fewer bytes, and what is left out waits in the
            residual.
        rows: R, 1, 3, 5 or 7. More: fewer elements that are taken for large by accident.
        width: C / k, 1 to 1000; C is rounded up to a multiple of 16. Larger: better estimates, more bytes: 4 R width
            for each element sent. The largest elements of noise need 100, heavy-tailed gradients far less.
        candidates: number of elements that are looked at exactly, as a multiple of k, 1 to 100; 4 bytes each.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = SketchedSGD(ratio=0.02)
        >>> x = torch.zeros(100).index_fill(0, torch.tensor([7, 42]), -3.0)
        >>> torch.equal(code.decompress(code.compress(x), x.shape), x)
        True

    Source:
        N. Ivkin, D. Rothchild, E. Ullah, V. Braverman, I. Stoica, R. Arora, "Communication-efficient Distributed SGD
        with Sketching", NeurIPS 2019.
    """

    ratio: float = 0.001
    rows: int = 5
    width: int = 16
    candidates: int = 4

    name = "sketched_sgd"
    family = "sparsification"
    reference = "N. Ivkin, D. Rothchild, E. Ullah, V. Braverman, I. Stoica, R. Arora, Sketched-SGD, NeurIPS 2019"
    rounds_needed = 2
    reductions = ("mean",) * 5
    rounds_only = ("sketch", "looked_at", "own")
    portable = True
    factorises = True
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "SketchedSGD.ratio", "in (0, 1]", self.ratio)
        require(is_int(self.rows, 1, 7) and self.rows % 2 == 1, "SketchedSGD.rows", "1, 3, 5 or 7", self.rows)
        require(is_int(self.width, 1, 1000), "SketchedSGD.width", "an integer in [1, 1000]", self.width)
        require(is_int(self.candidates, 1, 100), "SketchedSGD.candidates", "an integer in [1, 100]", self.candidates)

    def count(self, n: int) -> int:
        """The number k of elements sent of ``n``.

        >>> SketchedSGD(ratio=0.01).count(1000)
        10
        """
        return count_of(self.ratio, n)

    def pays_for(self, shape: Sequence[int]) -> bool:
        return self.traffic(shape) < 4 * math.prod(shape)

    def traffic(self, shape: Sequence[int]) -> float:
        sketch, looked_at, *_ = self.layout(shape).fields
        return float(sketch.nbytes + looked_at.nbytes)

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout, of which only ``sketch`` and ``looked_at`` travel; ``own`` holds this rank's values at
        ``indices``.
        """
        n = math.prod(shape)
        k = self.count(n)
        columns = -(-k * self.width // _LINE) * _LINE
        return Layout(
            (
                Field("sketch", torch.float32, self.rows * columns),
                Field("looked_at", torch.float32, min(n, k * self.candidates)),
                Field("values", torch.float32, k),
                Field("own", torch.float32, k),
                Field("indices", torch.int32, k),
            )
        )

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int]:
        work = [
            (_pieces(x), tuple(map(_pieces, payload)), each_or_one(*(keys[i].stream(common=True) for i in numbers)))
            for numbers, x, payload in together(xs, payloads)
        ]
        for x, (sketch, *_), stream in work:
            fill_where(sketch.as_tensor(), 0.0)
            ops.sketch_add(x.as_tensor(), sketch.as_tensor(), self.rows, stream, keys[0].step)
        yield 0
        candidates = []
        for x, (sketch, looked_at, *_), stream in work:
            estimate = Pieces.side_by_side(tuple(x.numel()), torch.float32, x.device)
            ops.sketch_estimate(sketch.as_tensor(), estimate.as_tensor(), self.rows, stream, keys[0].step)
            candidates.append(_largest(estimate, looked_at.numel()))
            _write(looked_at, _select(x, candidates[-1], looked_at))
        yield 1
        for (x, (_, looked_at, values, own, indices), _), where in zip(work, candidates, strict=True):
            best = _largest(looked_at, values.numel())
            _write(values, _select(looked_at, best, values))
            chosen = _select(Pieces(where, adjacent(tuple(looked_at.numel()))), best, values)
            _write(own, _select(x, chosen, values))
            _write(indices, chosen.int())

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_each([payload], [out], scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_own_each([payload], [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        _add([(payload[4], payload[2]) for payload in payloads], outs, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        _add([(payload[4], payload[3]) for payload in payloads], outs, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse indices that are not those of different elements.

        Raises:
            WireError: the indices do not increase, or leave the tensor.
        """
        # In 64 bits: the difference of two int32 may wrap around.
        indices, n = payload[4].long(), math.prod(shape)
        if bool((indices[:1] < 0).any()) or bool((indices.diff() <= 0).any()) or bool((indices[-1:] >= n).any()):
            raise WireError(f"sketched_sgd indices must increase and stay in [0, {n})")


def _pieces(x: Tensor) -> Pieces:
    """View a flat tensor as its only piece; pieces stay as they are."""
    many: object = x
    return many if isinstance(many, Pieces) else Pieces(x, adjacent((x.numel(),)))


def _largest(x: Pieces, counts: Each) -> Tensor:
    """Find the increasing indices of the largest magnitudes of each piece, of equal ones the first: the same on every
    device.

    Args:
        x: pieces.
        counts: number of elements to find in each piece.

    Returns:
        int64, those of one piece after those of another.
    """
    many, parts = tuple(counts), tuple(map(segments, x.numel()))
    values, low = (Pieces.side_by_side(many, dtype, x.device) for dtype in (torch.float32, torch.int16))
    found = Pieces.side_by_side(parts, torch.int32, x.device)
    topk_encode(x.as_tensor(), values.as_tensor(), low.as_tensor(), found.as_tensor())
    start = x.places.derive(_starts, x.device).repeat_interleave(found.base, output_size=sum(many))
    return start + low_bits(low.base)


def _select(x: Pieces, indices: Tensor, like: Pieces) -> Tensor:
    """Select elements of each piece.

    Args:
        x: pieces.
        indices: int64, places in the pieces, as many of each as ``like`` has elements, one piece after another.
    """
    return x.base.index_select(0, indices + x.places.derive(_lows, tuple(like.numel()), x.device))


def _write(pieces: Pieces, values: Tensor) -> None:
    """Copy values to pieces, where they lie one piece after another."""
    torch._foreach_copy_(pieces.each(), list(torch.split(values, list(pieces.numel()))))


def _add(sent: Sequence[tuple[Tensor, Tensor]], outs: Sequence[Tensor], scale: float) -> None:
    """Add values at indices of each tensor.

    Args:
        sent: indices, int32, and values of each tensor.
        outs: tensors of any shapes.
        scale: factor of the values.
    """
    for _, out, (indices, values) in together(outs, sent):
        whole, each, numbers = _pieces(out), _pieces(indices).each(), _pieces(values).each()
        lows = whole.places.derive(_lows, tuple(index.numel() for index in each), whole.device)
        whole.base.index_add_(0, torch.cat(each) + lows, torch.cat(numbers), alpha=scale)


def _starts(places: Places, device: torch.device) -> Tensor:
    """The first element of each segment of pieces, counted from that of its piece."""
    return torch.cat([torch.arange(segments(n), device="cpu") * SEGMENT for n in places.sizes]).to(device)


def _lows(places: Places, counts: tuple[int, ...], device: torch.device) -> Tensor:
    """The first element of the piece of each of as many numbers."""
    return (
        torch.tensor(tuple(places.offsets), device="cpu")
        .repeat_interleave(torch.tensor(counts, device="cpu"))
        .to(device)
    )
