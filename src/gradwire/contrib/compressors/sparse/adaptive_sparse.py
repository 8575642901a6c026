"""Unbiased sparsification that keeps each element with a probability chosen for a small variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import Feedback
from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors import _entries
from gradwire.contrib.compressors.sparse import ops
from gradwire.contrib.compressors.sparse._chosen import Entries, add_ranks, first_guess, room_for
from gradwire.contrib.compressors.sparse._measure import MagnitudeMoments, measure, unit_of
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.kernels.bits import pack
from gradwire.kernels.segments import check_places, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["AdaptiveSparse"]

_SMALLEST = 2.0**-149


@dataclass(frozen=True)
class AdaptiveSparse(ManyDecoder):
    """Keep element j with probability p_j = min(1, |x_j| / s), and send x_j / p_j: E C(x) = x.

    C(x)_j = x_j where |x_j| >= s;  sign(x_j) s with probability |x_j| / s, else 0, below s. For a given expected number
    of elements, probabilities of this form have the least variance. Two ways to s:

        greedy    sum_j p_j = k = max(1, ratio n): s = sum |x_j| / k, then ``iterations`` times the same for the
                  elements below s, with what those above leave of k. omega <= n / k.
        closed    sum_j x_j^2 / p_j = (1 + eps) |x|^2, with the fewest elements: s = (eps |x|^2 + sum_{|x_j| < s} x_j^2)
                  / sum_{|x_j| < s} |x_j|. omega = eps; how many are sent follows from the gradient.

    Elements above s are sent with their value, in 48 bits; all others that are kept decode to s or -s, in 17 bits.
    Their number is random, but whether x itself travels instead (float32, where the entries could take as much) follows
    from x alone and not from the draw, so no outcome is left out of the mean. With a NaN or an infinity it is x that
    travels.

    Args:
        mode: "greedy" or "closed".
        ratio: expected share of elements that "greedy" sends, in (0, 1].
        iterations: number of iterations of "greedy", >= 0. With 2 the expected number is met within 0.1 % on usual
            gradients.
        eps: variance that "closed" adds, relative to |x|^2, > 0. Lower: more elements. Below 1 feedback is possible.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = AdaptiveSparse(ratio=0.5)
        >>> code.decompress(code.compress(torch.tensor([8.0, 0.0, 0.0, -6.0])), (4,)).tolist()
        [8.0, 0.0, 0.0, -6.0]

    Source:
        J. Wangni, J. Wang, J. Liu, T. Zhang, "Gradient Sparsification for Communication-Efficient Distributed
        Optimization", NeurIPS 2018.
    """

    mode: Literal["greedy", "closed"] = "greedy"
    ratio: float = 0.05
    iterations: int = 2
    eps: float = 1.0

    name = "adaptive_sparse"
    family = "sparsification"
    reference = "J. Wangni, J. Wang, J. Liu, T. Zhang, Gradient Sparsification, NeurIPS 2018"
    unbiased = True
    random = True
    fixed_size = False
    used_on_host = True
    overflows = False

    def __post_init__(self) -> None:
        require(self.mode in ("greedy", "closed"), "AdaptiveSparse.mode", "'greedy' or 'closed'", self.mode)
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "AdaptiveSparse.ratio", "in (0, 1]", self.ratio)
        require(is_int(self.iterations, 0), "AdaptiveSparse.iterations", "an integer >= 0", self.iterations)
        require(is_float32(self.eps) and self.eps > 0, "AdaptiveSparse.eps", "a finite number > 0", self.eps)

    @property
    def feedback(self) -> Feedback:
        return "optional" if self.contraction else "unsafe"

    @property
    def bounded(self) -> str:
        return "AdaptiveSparse(mode='closed', eps=0.5)"

    @property
    def contraction(self) -> bool:
        return self.mode == "closed" and self.eps < 1

    def delta(self, n: int) -> float:
        return 1 - self.eps if self.contraction else 0.0

    def omega(self, n: int) -> float:
        return self.eps if self.mode == "closed" else n / max(1.0, self.ratio * n)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("step", torch.float32, 1),
                Field("sizes", torch.int32, 2),
                Field("counts", torch.int32, 2 * segments(n)),
                Field("stream", torch.uint8, 4 * n),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, step, sizes, counts, stream = payload
        flat = x.view(-1)
        all_of = measure(flat)
        s = self._step(flat, all_of)
        step.fill_(s)
        drawn = _draw(flat, s, counts, key) if math.isfinite(s) else None
        # In the worst case all nonzero elements below s are kept.
        if drawn is None or _nbytes(drawn.above, all_of.size - drawn.above) >= 4 * flat.numel():
            sizes.fill_(-1)
            counts.zero_()
            _entries.fill(used, stream, flat)
            return
        sizes.copy_(torch.tensor([drawn.above, drawn.signs.numel()], dtype=torch.int32, device="cpu"))
        _entries.fill(used, stream, drawn.whole, drawn.whole_places, drawn.sign_places, pack(drawn.signs < 0, 1))

    def _step(self, flat: Tensor, all_of: MagnitudeMoments) -> float:
        """Compute s, a float32 above 0; NaN if x is not finite."""
        if not math.isfinite(all_of.largest):
            return math.nan
        s = _SMALLEST
        if all_of.largest > 0:
            unit = unit_of(all_of.largest)
            if self.mode == "closed" or math.isinf(all_of.total):
                all_of = measure(flat, unit=unit)
            s = self._greedy(flat, all_of, unit) if self.mode == "greedy" else self._closed(flat, all_of, unit)
        # The probabilities must be those of the s that is sent.
        return float(torch.tensor(max(s, _SMALLEST), dtype=torch.float32, device="cpu"))

    def _greedy(self, flat: Tensor, all_of: MagnitudeMoments, unit: float) -> float:
        k = max(1.0, self.ratio * flat.numel())
        s = all_of.total / k
        for _ in range(self.iterations):
            below = measure(flat, high=s, unit=unit)
            left = k - (all_of.size - below.size)
            if below.total == 0 or below.total >= s * left:
                break
            s = below.total / left
        return s

    def _closed(self, flat: Tensor, all_of: MagnitudeMoments, unit: float) -> float:
        below, s, above = all_of, 0.0, -1
        budget = self.eps * all_of.squares
        # An element that is above s stays there: moving it out of the sums only lowers s.
        while all_of.size - below.size > above and below.total > 0:
            s, above = (budget + below.squares) / below.total, all_of.size - below.size
            below = measure(flat, high=s, unit=unit)
        return s

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        add_ranks(payloads, out, scale, _read, _add_dense)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse entries that do not describe different elements of the tensor.

        Raises:
            WireError: the bytes in ``used`` do not follow from the sizes, or a place is impossible.
        """
        used, _, sizes, counts, stream = payload
        n, nbytes, (a, b) = math.prod(shape), int(used), sizes.tolist()
        dense = a == b == -1
        if (not dense and min(a, b) < 0) or nbytes != (4 * n if dense else _nbytes(a, b)) or nbytes > 4 * n:
            raise WireError(f"{self.name} of {n} elements cannot use {nbytes} bytes for {a} and {b} entries")
        if not dense:
            low, half = _entries.part(stream, 4 * a, a + b, torch.int16), counts.numel() // 2
            check_places(self.name, counts[:half], low[:a], n)
            check_places(self.name, counts[half:], low[a:], n)


class _Drawn(NamedTuple):
    """The draw: the elements that reach s, their number, and the other kept ones; too many of the former are not
    written.
    """

    above: int
    whole: Tensor
    whole_places: Tensor
    signs: Tensor
    sign_places: Tensor


def _draw(flat: Tensor, s: float, counts: Tensor, key: Key) -> _Drawn:
    """Draw the elements, and write the counts of both kinds."""
    n, half = flat.numel(), counts.numel() // 2
    guess, most = min(first_guess(flat), n), 4 * n // 6
    whole, signs = room_for(guess, flat), room_for(guess, flat)
    ops.take_drawn(flat, counts[:half], *whole, counts[half:], *signs, s, key.stream(), key.step)
    above, below = counts.view(2, half).sum(1).tolist()
    if max(above, below) > guess and above <= most:
        whole, signs = room_for(above, flat), room_for(below, flat)
        ops.take_drawn(flat, counts[:half], *whole, counts[half:], *signs, s, key.stream(), key.step)
    return _Drawn(above, *(each[:above] for each in whole), *(each[:below] for each in signs))


def _read(payload: Payload, n: int) -> list[Entries] | None:  # noqa: ARG001
    used, step, sizes, counts, stream = payload
    stream = stream[: _entries.in_use(used, stream)]
    a, b = sizes.tolist()
    if a < 0 or b < 0 or _nbytes(a, b) > stream.numel():
        return None
    half = counts.numel() // 2
    values, low = _entries.part(stream, 0, a, torch.float32), _entries.part(stream, 4 * a, a + b, torch.int16)
    signs = stream[6 * a + 2 * b : _nbytes(a, b)]
    levels = torch.cat([step, -step])
    return [
        Entries(values, low[:a], counts[:half]),
        Entries(signs, low[a:], counts[half:], levels),
    ]


def _add_dense(payload: Payload, flat: Tensor, scale: float) -> None:
    used, *_, stream = payload
    dense = _entries.part(stream, 0, _entries.in_use(used, stream) // 4, torch.float32)
    flat[: dense.numel()].add_(dense, alpha=scale)


def _nbytes(above: int, below: int) -> int:
    """The bytes of the entries: a value and an index each, or an index and a sign."""
    return 6 * above + 2 * below + -(-below // 8)
