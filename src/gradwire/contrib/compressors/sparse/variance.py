"""Sparsification by signal to noise, with values as powers of two in 4 bits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors import _entries
from gradwire.contrib.compressors.sparse import ops
from gradwire.contrib.compressors.sparse._chosen import room_for
from gradwire.contrib.compressors.sparse._exponents import INFINITE, codes_of, rounded, values_of
from gradwire.contrib.compressors.sparse._measure import measure
from gradwire.errors import WireError
from gradwire.kernels.bits import unpack_bits
from gradwire.kernels.segments import few, read_places, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Variance"]

_DEPTH = 7
_INDEX_BITS = 28


@dataclass(frozen=True)
class Variance(ManyDecoder):
    """Send the elements whose accumulated gradient exceeds its noise, rounded to a power of two: 32 bits each.

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
    family = "sparsification"
    reference = "Y. Tsuzuku, H. Imachi, T. Akiba, Variance-based Gradient Compression, ICLR 2018 workshop"
    fixed_size = False
    overflows = False
    memory = "variance"
    feedback = "built-in"

    def delta(self, n: int) -> float:
        return 0.75 / (1 + max(0, n - 1) / 2**14)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("head", torch.int32, 2),
                Field("stream", torch.uint8, -(-n // 8) + -(-n // 2)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, head, stream = payload
        flat = x.view(-1)
        top = int(rounded(torch.tensor(measure(flat).largest, dtype=torch.float32, device="cpu")))
        # If an element is not finite the largest exponent is 255, and only such elements are sent.
        least = _least(max(1, top - _DEPTH) if top < INFINITE else INFINITE)
        bitmap = stream[: -(-flat.numel() // 8)]
        counts = torch.empty(segments(flat.numel()), dtype=torch.int32, device=x.device)
        ops.mark_beyond(flat, bitmap, counts, least, least)
        k = int(counts.sum())
        if _as_words(k, flat.numel()):
            values, low = room_for(k, flat)
            ops.take_marked(flat, bitmap, counts, values, low)
            _entries.fill(used, stream, codes_of(values, top) << _INDEX_BITS | read_places(low, counts).int())
        else:
            nbytes = _nbytes(k, flat.numel())
            ops.exponent_encode(flat, bitmap, counts, stream[bitmap.numel() : nbytes], top)
            used.fill_(nbytes)
        head.copy_(torch.tensor([top, k], dtype=torch.int32, device="cpu"))

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        flat = out.view(-1)
        for first, last, words in self._runs(payloads, flat.numel()):
            used, heads, streams = (field[first:last] for field in payloads)
            if words:
                for rank in range(last - first):
                    _add_words(used[rank], heads[rank], streams[rank], flat, scale)
            else:
                ops.exponent_add_decoded(streams, used, heads[:, :1], flat, scale)

    def _runs(self, payloads: Payload, n: int) -> Iterator[tuple[int, int, bool]]:
        """The first and last of adjacent ranks of the same form, and whether that is the form of words."""
        forms = [_as_words(k, n) for k in payloads[1][:, 1].tolist()]
        first = 0
        for rank in range(1, len(forms) + 1):
            if rank == len(forms) or forms[rank] != forms[first]:
                yield first, rank, forms[first]
                first = rank

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse an exponent, a count or indices that are impossible.

        Raises:
            WireError: the exponent is not in [0, 255], ``used`` is not what the count of entries takes, or the indices
                do not increase and stay below n, or the marks are not as many.
        """
        used, head, stream = payload
        n, (top, k) = math.prod(shape), head.tolist()
        if not 0 <= top <= INFINITE or not 0 <= k <= n or int(used) != _nbytes(k, n):
            raise WireError(f"variance says an exponent of {top}, {k} entries and {int(used)} bytes for {n} elements")
        if not _as_words(k, n):
            marked = int(unpack_bits(stream[: -(-n // 8)], n).sum())
            if marked != k:
                raise WireError(f"variance needs {k} marks for as many entries, got {marked}")
            return
        index, _ = _words(stream, k)
        if bool((index.diff() <= 0).any()) or bool((index[-1:] >= n).any()):
            raise WireError(f"variance needs {k} increasing indices below {n}, got {few(index)}")


def _least(exponent: int) -> float:
    """The smallest magnitude that is rounded to this biased exponent: 1.5 times the power below."""
    bits = (exponent << 23) - (0x400000 if exponent < INFINITE else 0)
    return float(torch.tensor(bits, dtype=torch.int32, device="cpu").view(torch.float32))


def _add_words(used: Tensor, head: Tensor, stream: Tensor, flat: Tensor, scale: float) -> None:
    top, k = head.tolist()
    index, codes = _words(stream[: _entries.in_use(used, stream)], k)
    inside = index < flat.numel()
    flat.index_add_(0, index[inside], values_of(codes[inside], top), alpha=scale)


def _as_words(k: int, n: int) -> bool:
    return n <= 1 << _INDEX_BITS and 4 * k <= -(-n // 8) + -(-k // 2)


def _nbytes(k: int, n: int) -> int:
    return 4 * k if _as_words(k, n) else -(-n // 8) + -(-k // 2)


def _words(stream: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The indices and codes of k words, or of as many as there are."""
    words = _entries.part(stream, 0, max(0, min(k, stream.numel() // 4)), torch.int32)
    return (words & (1 << _INDEX_BITS) - 1).long(), (words >> _INDEX_BITS) & 15
