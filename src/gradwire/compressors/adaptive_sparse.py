"""Keep each element with a probability that makes the variance small, and stay unbiased."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors import _entries
from gradwire.compressors.base import Compressor, Feedback
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["AdaptiveSparse"]

_SMALLEST = 2.0**-149


@dataclass(frozen=True)
class AdaptiveSparse(Compressor):
    """Keep element j with probability p_j = min(1, |x_j| / s), and send x_j / p_j: E C(x) = x.

    C(x)_j = x_j where |x_j| >= s;  sign(x_j) s with probability |x_j| / s, else 0, below s. For a given expected number
    of elements, probabilities of this form have the least variance. Two ways to s:

        greedy    sum_j p_j = k = max(1, ratio n): s = sum |x_j| / k, then ``iterations`` times the same for the
                  elements below s, with what those above leave of k. omega <= n / k.
        closed    sum_j x_j^2 / p_j = (1 + eps) |x|^2, with the fewest elements: s = (eps |x|^2 + sum_{|x_j| < s} x_j^2)
                  / sum_{|x_j| < s} |x_j|. omega = eps; how many are sent follows from the gradient.

    Elements above s are sent with their value, in 48 bits; all others that are kept decode to s or -s, in 17 bits.
    Their number is random, but whether x itself travels instead (float32, where the entries could take as much) follows
    from x alone and not from the draw, so no outcome is left out of the mean. With a NaN it is x that travels.

    Args:
        mode: "greedy" or "closed".
        ratio: of "greedy", in (0, 1]: expected share of elements sent.
        iterations: of "greedy", >= 0. With 2 the expected number is met within 0.1 % on usual gradients.
        eps: of "closed", > 0: variance added, relative to |x|^2. Lower: more elements. Below 1 feedback is possible.

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
        return Layout((
            Field("used", torch.int32, 1),
            Field("step", torch.float32, 1),
            Field("sizes", torch.int32, 2),
            Field("counts", torch.int32, 2 * _entries.segments(n)),
            Field("stream", torch.uint8, 4 * n),
        ))  # fmt: skip

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, step, sizes, counts, stream = payload
        flat = x.view(-1)
        s = self._step(flat)
        above, below = _count(flat, s) if math.isfinite(s) else (flat.numel(), 0)
        step.fill_(s)
        if _nbytes(above, below) >= 4 * flat.numel():
            sizes.fill_(-1)
            counts.zero_()
            _entries.fill(used, stream, flat)
            return
        stream_key = key.stream()
        index = _entries.find(flat, lambda begin, piece: _kept(piece, s, stream_key, key.step, begin), above + below)
        assert index is not None, "no more are kept than could be"
        values = flat[index]
        whole = values.abs() >= s
        signs = _entries.pack_bits(values[~whole] < 0)
        half = counts.numel() // 2
        low = _entries.places(index[whole], counts[:half]), _entries.places(index[~whole], counts[half:])
        sizes.copy_(torch.tensor([indices.numel() for indices in low], dtype=torch.int32))
        _entries.fill(used, stream, values[whole], *low, signs)

    def _step(self, flat: Tensor) -> float:
        """s, a float32 above 0; NaN or infinite where x is not finite."""
        s = self._greedy(flat) if self.mode == "greedy" else self._closed(flat)
        # The probabilities must be those of the s that is sent.
        return float(torch.tensor(max(s, _SMALLEST) if s == s else s, dtype=torch.float32))

    def _greedy(self, flat: Tensor) -> float:
        k = max(1.0, self.ratio * flat.numel())
        s = _split(flat, math.inf).total / k
        for _ in range(self.iterations if math.isfinite(s) else 0):
            split = _split(flat, s)
            left = k - split.above
            if split.total == 0 or split.total >= s * left:
                break
            s = split.total / left
        return s

    def _closed(self, flat: Tensor) -> float:
        split = _split(flat, math.inf, squares=True)
        budget, above = self.eps * split.squares, -1
        # An element that is above s stays there: moving it out of the sums only lowers s.
        while split.above > above and split.total > 0 and math.isfinite(budget):
            s, above = (budget + split.squares) / split.total, split.above
            split = _split(flat, s, squares=True)
        return s if above >= 0 else split.total

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        used, step, sizes, counts, stream = payload
        stream = stream[: _entries.in_use(used, stream)]
        a, b = sizes.tolist()
        if a < 0 or b < 0 or _nbytes(a, b) > stream.numel():
            dense = _entries.part(stream, 0, stream.numel() // 4, torch.float32)
            out.view(-1)[: dense.numel()].add_(dense, alpha=scale)
            return
        half = counts.numel() // 2
        values, low = _entries.part(stream, 0, a, torch.float32), _entries.part(stream, 4 * a, a + b, torch.int16)
        _entries.add_entries(values, low[:a], counts[:half], out, scale)
        negative = _entries.unpack_bits(stream[6 * a + 2 * b : _nbytes(a, b)], b)
        _entries.add_entries(torch.where(negative, -step, step), low[a:], counts[half:], out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse entries that do not describe different elements of the tensor.

        Raises:
            WireError: ``used`` does not follow from the sizes, or a place is impossible.
        """
        used, _, sizes, counts, stream = payload
        n, nbytes, (a, b) = math.prod(shape), int(used), sizes.tolist()
        dense = a == b == -1
        if (not dense and min(a, b) < 0) or nbytes != (4 * n if dense else _nbytes(a, b)) or nbytes > 4 * n:
            raise WireError(f"{self.name} of {n} elements cannot use {nbytes} bytes for {a} and {b} entries")
        if not dense:
            low, half = _entries.part(stream, 4 * a, a + b, torch.int16), counts.numel() // 2
            _entries.check_places(self.name, counts[:half], low[:a], n)
            _entries.check_places(self.name, counts[half:], low[a:], n)


class _Split(NamedTuple):
    """How many elements reach s, and of the others the sums of |x| and, for "closed", of x^2."""

    above: int
    total: float
    squares: float


def _split(flat: Tensor, s: float, *, squares: bool = False) -> _Split:
    above, total, square = 0, 0.0, 0.0
    for _, piece in _entries.pieces(flat):
        magnitudes = piece.abs()
        reach = magnitudes >= s
        above += int(reach.count_nonzero())
        rest = magnitudes.masked_fill_(reach, 0.0)
        total += float(rest.sum(dtype=torch.float64))
        if squares:
            square += float(rest.double().square_().sum())
    return _Split(above, total, square)


def _count(flat: Tensor, s: float) -> tuple[int, int]:
    """How many elements reach s, and how many of the others are not zero."""
    above, nonzero = 0, 0
    for _, piece in _entries.pieces(flat):
        above += int((piece.abs() >= s).count_nonzero())
        nonzero += int((piece != 0).count_nonzero())
    return above, nonzero - above


def _kept(piece: Tensor, s: float, stream: int, step: int, begin: int) -> Tensor:
    """|x| > u s, u from 32 random bits of each element, never 0 or 1."""
    words = torch.empty(piece.shape, dtype=torch.int32, device=piece.device)
    ops.philox(words, stream, step, begin // 4)
    u = words.double().add_(2.0**31 + 0.5).mul_(2.0**-32)
    return u.mul_(s) < piece.abs()


def _nbytes(above: int, below: int) -> int:
    """What the entries take: a value and an index each, or an index and a sign."""
    return 6 * above + 2 * below + -(-below // 8)
