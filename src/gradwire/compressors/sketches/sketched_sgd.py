"""Method that sends the largest elements of the mean gradient, found in a count sketch that the ranks average."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.base import Feedback, MultiRound
from gradwire.compressors.sketches import ops
from gradwire.compressors.sparse.ops import topk_encode
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.helpers import count_of
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["SketchedSGD"]

_SEGMENT = 1 << 16
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
    own_share = True
    portable = True
    factorises = True

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "SketchedSGD.ratio", "in (0, 1]", self.ratio)
        require(is_int(self.rows, 1, 7) and self.rows % 2 == 1, "SketchedSGD.rows", "1, 3, 5 or 7", self.rows)
        require(is_int(self.width, 1, 1000), "SketchedSGD.width", "an integer in [1, 1000]", self.width)
        require(is_int(self.candidates, 1, 100), "SketchedSGD.candidates", "an integer in [1, 100]", self.candidates)

    @property
    def feedback(self) -> Feedback:
        return "required"

    @property
    def alignment(self) -> int:
        return 0

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
        work = [(x.view(-1), payload, key) for x, payload, key in zip(xs, payloads, keys, strict=True) if x.numel()]
        for x, (sketch, *_), key in work:
            ops.sketch_add(x, sketch.zero_(), self.rows, key.stream(common=True), key.step)
        yield 0
        places = []
        for x, (sketch, looked_at, *_), key in work:
            estimate = torch.empty_like(x)
            ops.sketch_estimate(sketch, estimate, self.rows, key.stream(common=True), key.step)
            places.append(_largest(estimate, looked_at.numel()))
            torch.index_select(x, 0, places[-1], out=looked_at)
        yield 1
        for (x, (_, looked_at, values, own, indices), _), where in zip(work, places, strict=True):
            best = _largest(looked_at, values.numel())
            torch.index_select(looked_at, 0, best, out=values)
            indices.copy_(where[best])
            torch.index_select(x, 0, where[best], out=own)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.view(-1).index_add_(0, payload[4], payload[2], alpha=scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.view(-1).index_add_(0, payload[4], payload[3], alpha=scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse indices that are not those of different elements.

        Raises:
            WireError: the indices do not increase, or leave the tensor.
        """
        indices, n = payload[4], math.prod(shape)
        if bool((indices[:1] < 0).any()) or bool((indices.diff() <= 0).any()) or bool((indices[-1:] >= n).any()):
            raise WireError(f"sketched_sgd indices must increase and stay in [0, {n})")


def _largest(x: Tensor, k: int) -> Tensor:
    """Find the increasing indices of the k largest magnitudes, of equal ones the first: the same on every device."""
    segments = -(-x.numel() // _SEGMENT)
    counts = torch.empty(segments, dtype=torch.int32, device=x.device)
    low = torch.empty(k, dtype=torch.int16, device=x.device)
    topk_encode(x, torch.empty(k, device=x.device), low, counts)
    start = torch.arange(segments, device=x.device).repeat_interleave(counts, output_size=k) * _SEGMENT
    return start + (low.long() & (_SEGMENT - 1))
