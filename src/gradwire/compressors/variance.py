"""Powers of two below the largest element, in 4 bits, for the elements that are not zero."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors import _entries
from gradwire.compressors.base import Compressor, Feedback
from gradwire.errors import WireError
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["Variance"]

_DEPTH = 7
_INDEX_BITS = 28
_INFINITE = 255


@dataclass(frozen=True)
class Variance(Compressor):
    """Send the elements whose accumulated gradient is not ambiguous, rounded to a power of two: 32 bits each.

    Memory ``variance`` decides which: r^2 > alpha v; the others are 0 here. Of those, with p(x) = |x| rounded to the
    nearest power of two (up from 1.5) and e = max log2 p(x): C(x) = sign(x) p(x) where log2 p(x) >= e - 7, 0 elsewhere.

    An entry is a word: 3 bits e - log2 p(x), a sign bit, 28 bits of index. Where a bitmap of all elements and 4 bits
    for each entry take less (from n / 28 entries on, and for tensors of more than 2^28 elements), they travel instead.
    Elements below 2^-126 are sent as zero or 2^-126. A NaN or an infinity makes everything that is sent NaN.

    By itself, as with memory ``residual``, it is a contraction: |C(x) - x|^2 <= (1 - delta) |x|^2 with
    delta = (3/4) / (1 + (n - 1) / 2^14). The details of the code follow a description of the paper, not its text.

    Example:
        >>> code = Variance()
        >>> code.decompress(code.compress(torch.tensor([3.0, 0.0, -1.4, 0.01])), (4,)).tolist()
        [4.0, 0.0, -1.0, 0.0]

    Source:
        Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient Distributed Deep Learning",
        ICLR 2018 workshop.
    """

    name = "variance"
    reference = "Y. Tsuzuku, H. Imachi, T. Akiba, Variance-based Gradient Compression, ICLR 2018 workshop"
    fixed_size = False
    memory = "variance"

    @property
    def feedback(self) -> Feedback:
        return "built-in"

    @property
    def contraction(self) -> bool:
        return True

    def delta(self, n: int) -> float:
        return 0.75 / (1 + max(0, n - 1) / 2**14)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout((
            Field("used", torch.int32, 1),
            Field("head", torch.int32, 2),
            Field("stream", torch.uint8, -(-n // 8) + -(-n // 2)),
        ))  # fmt: skip

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, head, stream = payload
        flat = x.view(-1)
        top = _largest_exponent(flat)
        # Of what is not finite the largest exponent is 255, and only such elements are sent.
        least = _least(max(1, top - _DEPTH) if top < _INFINITE else _INFINITE)
        index = _entries.find(flat, lambda _, piece: _reaches(piece, least), _most_words(flat.numel()))
        if index is not None:
            codes = _codes(flat[index], top)
            _entries.fill(used, stream, codes << _INDEX_BITS | index.int())
        else:
            bitmap, codes = _marked(flat, top, least)
            _entries.fill(used, stream, bitmap, _nibbles(codes))
        head.copy_(torch.tensor([top, codes.numel()], dtype=torch.int32))

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        used, head, stream = payload
        flat, (top, k) = out.view(-1), head.tolist()
        stream = stream[: _entries.in_use(used, stream)]
        if _as_words(k, flat.numel()):
            index, codes = _words(stream, k)
            inside = index < flat.numel()
            flat.index_add_(0, index[inside], _values(codes, top)[inside], alpha=scale)
            return
        codes, done = _unpaired(stream[-(-flat.numel() // 8) :]), 0
        for begin, local in _unmarked(stream, flat):
            own = codes[done : done + local.numel()]
            flat[begin:].index_add_(0, local[: own.numel()], _values(own, top), alpha=scale)
            done += own.numel()

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse an exponent, a count or indices that cannot be.

        Raises:
            WireError: the exponent is not in [0, 255], ``used`` is not what the count of entries takes, or the indices
                do not increase and stay below n, or the marks are not as many.
        """
        used, head, stream = payload
        n, (top, k) = math.prod(shape), head.tolist()
        if not 0 <= top <= _INFINITE or not 0 <= k <= n or int(used) != _nbytes(k, n):
            raise WireError(f"variance says an exponent of {top}, {k} entries and {int(used)} bytes for {n} elements")
        if not _as_words(k, n):
            marked = sum(local.numel() for _, local in _unmarked(stream, torch.empty(n, device="meta")))
            if marked != k:
                raise WireError(f"variance needs {k} marks for as many entries, got {marked}")
            return
        index, _ = _words(stream, k)
        if bool((index.diff() <= 0).any()) or bool((index[-1:] >= n).any()):
            raise WireError(f"variance needs {k} increasing indices below {n}, got {_entries.few(index)}")


def _exponents(x: Tensor) -> Tensor:
    """Biased exponents of |x| rounded to a power of two, int32; 255 only for what is not finite."""
    bits = x.view(torch.int32) & 0x7FFFFFFF
    rounded = (bits + 0x400000 >> 23).clamp_(max=_INFINITE - 1)
    return torch.where(bits >= _INFINITE << 23, _INFINITE, rounded)


def _largest_exponent(flat: Tensor) -> int:
    largest = [piece.abs().amax() for _, piece in _entries.pieces(flat)]
    return int(_exponents(torch.stack(largest)).amax()) if largest else 0


def _least(exponent: int) -> float:
    """The smallest magnitude that is rounded to this biased exponent: 1.5 of the one below."""
    bits = (exponent << 23) - (0x400000 if exponent < _INFINITE else 0)
    return float(torch.tensor(bits, dtype=torch.int32).view(torch.float32))


def _reaches(x: Tensor, least: float) -> Tensor:
    """|x| >= least, and NaN."""
    return (x.abs() < least).logical_not_()


def _codes(x: Tensor, top: int) -> Tensor:
    return (top - _exponents(x)) | (x < 0).int() << 3


def _values(codes: Tensor, top: int) -> Tensor:
    if top == _INFINITE:
        return torch.full(codes.shape, math.nan, device=codes.device)
    bits = (top - (codes & _DEPTH).int()).clamp_(0, _INFINITE) << 23
    return torch.where(codes > _DEPTH, -1.0, 1.0) * bits.view(torch.float32)


def _as_words(k: int, n: int) -> bool:
    return n <= 1 << _INDEX_BITS and 4 * k <= -(-n // 8) + -(-k // 2)


def _most_words(n: int) -> int:
    """The most entries that travel as words."""
    if n > 1 << _INDEX_BITS:
        return -1
    k = -(-n // 8) * 2 // 7
    return k + 1 if _as_words(k + 1, n) else k


def _nbytes(k: int, n: int) -> int:
    return 4 * k if _as_words(k, n) else -(-n // 8) + -(-k // 2)


def _marked(flat: Tensor, top: int, least: float) -> tuple[Tensor, Tensor]:
    """A bit for each element, set where it is sent, and the codes of those that are, uint8."""
    bits, codes = [flat.new_empty(0, dtype=torch.uint8)], [flat.new_empty(0, dtype=torch.uint8)]
    for _, piece in _entries.pieces(flat):
        mark = _reaches(piece, least)
        bits.append(_entries.pack_bits(mark))
        codes.append(_codes(piece, top).to(torch.uint8)[mark])
    return torch.cat(bits), torch.cat(codes)


def _unmarked(bitmap: Tensor, like: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Offset and indices within it of what is set, for each piece of ``like``."""
    for begin, piece in _entries.pieces(like):
        end = begin + piece.numel()
        yield begin, _entries.unpack_bits(bitmap[begin // 8 : -(-end // 8)], piece.numel()).nonzero().view(-1)


def _nibbles(codes: Tensor) -> Tensor:
    pairs = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4


def _unpaired(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], 1).view(-1)


def _words(stream: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Indices and codes of k words, or of as many as there are."""
    words = _entries.part(stream, 0, max(0, min(k, stream.numel() // 4)), torch.int32)
    return (words & (1 << _INDEX_BITS) - 1).long(), (words >> _INDEX_BITS) & 15
