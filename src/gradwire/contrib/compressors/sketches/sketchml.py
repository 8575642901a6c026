"""Quantile buckets with means; for a sparse gradient the buckets are in a sketch and the keys are differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors import _entries
from gradwire.contrib.compressors.sketches import _minmax, ops
from gradwire.errors import WireError, is_int, require
from gradwire.kernels.bits import pack, unpack_bits
from gradwire.kernels.segments import few
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["SketchML"]

_BINS = 1 << 16
_MOST_BUCKETS = 256
_SAMPLE = 1 << 15
_GROUPS = 4
"""The number of groups of buckets of one sign, each with a table of its own."""


@dataclass(frozen=True)
class SketchML(ManyDecoder):
    """Sort the elements into buckets of equally many, and send for each the mean of its bucket: 8 bits or less.

    C(x)_j = mean of the bucket of x_j. No bucket holds both signs, and zero has its own.

    The edges are quantiles of a sample of 32768 elements, to 8 significant bits. Where the gradient is mostly zero,
    what is not zero travels as keys and ranks, in two parts. Keys: differences of 1 to 4 bytes, 2 bits for how many.
    Ranks, how far a bucket is from zero: in a MinMaxSketch for each group of buckets, 4.8 bits a key, from which a rank
    is read right or too small. So such an element keeps its sign, and its magnitude is never read larger; it decays,
    and the residual makes up for it. This form is taken where it is the smaller one, below about half of n.

    Args:
        buckets: 16 to 256, the one of zero included. Fewer save nothing but the table of means, 32 bits each.

    Raises:
        ConfigError: the number is outside its range.

    Example:
        >>> code = SketchML(buckets=16)
        >>> code.decompress(code.compress(torch.tensor([1.0, -3.0, 0.0, 2.0])), (4,)).tolist()
        [1.0, -3.0, 0.0, 2.0]

    Source:
        J. Jiang, F. Fu, T. Yang, B. Cui, "SketchML: Accelerating Distributed Machine Learning with Data Sketches",
        SIGMOD 2018.
    """

    buckets: int = 256

    name = "sketchml"
    fine = True
    family = "hybrid"
    reference = "J. Jiang, F. Fu, T. Yang, B. Cui, SketchML, SIGMOD 2018"
    fixed_size = False
    used_on_host = True
    feedback = "required"

    def __post_init__(self) -> None:
        require(is_int(self.buckets, 16, 256), "SketchML.buckets", "an integer from 16 to 256", self.buckets)

    def layout(self, shape: Sequence[int]) -> Layout:
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("head", torch.int32, 1 + 2 * _GROUPS),
                Field("means", torch.float32, self.buckets),
                Field("stream", torch.uint8, math.prod(shape)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, head, means, stream = payload
        flat = x.view(-1)
        positive, bucket_of = self._buckets(_sample(flat))
        counts = _assign(flat, bucket_of, stream, means)
        used.fill_(flat.numel())
        head.zero_()[0] = positive
        nonzero = flat.numel() - int(counts[0])
        # A key takes at least 0.6 bytes of a table, a byte and 2 bits.
        if 1.85 * nonzero < flat.numel() and bool(means.isfinite().all()):
            sizes, parts = self._sketch(stream, positive, nonzero)
            if sum(part.numel() for part in parts) < flat.numel():
                head[1:].copy_(torch.tensor(sizes, dtype=torch.int32, device="cpu"))
                _entries.fill(used, stream, *parts)

    def _buckets(self, sample: Tensor) -> tuple[int, Tensor]:
        """The number of positive buckets, and the bucket for each value of the upper 16 bits of a float32."""
        bits = _upper(sample)
        signs = [bits[(bits > 0) & (bits < _BINS // 2)], bits[bits > _BINS // 2] - _BINS // 2]
        q, shown = self.buckets - 1, [own.numel() for own in signs]
        positive = min(max(round(q * shown[0] / max(1, sum(shown))), _GROUPS), q - _GROUPS)
        ranks = [_ranks(own, count) for own, count in zip(signs, (positive, q - positive), strict=True)]
        buckets = torch.stack([ranks[0].add_(1).to(torch.uint8), ranks[1].add_(1 + positive).to(torch.uint8)])
        buckets[:, 0] = 0
        return positive, buckets.view(-1)

    def _sketch(self, codes: Tensor, positive: int, nonzero: int) -> tuple[list[int], list[Tensor]]:
        """The number of keys in each group, and the parts of the stream: tables, lengths, differences."""
        index = _entries.find(codes, lambda _, piece: piece != 0, nonzero)
        assert index is not None, "no more than were counted"
        group_of, rank_of = self._groups(positive, codes.device)
        chosen = codes[index].int()
        keys = [index[group_of[chosen] == group] for group in range(2 * _GROUPS)]
        tables = [_minmax.insert(own, rank_of[codes[own].int()]) for own in keys]
        gaps, lengths = (torch.cat(parts) for parts in zip(*map(_minmax.deltas, keys), strict=True))
        flags = torch.stack([lengths & 1, lengths >> 1], 1).view(-1) != 0
        return [own.numel() for own in keys], [*tables, pack(flags, 1), _minmax.delta_bytes(gaps, lengths)]

    def _groups(self, positive: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The group of each bucket, and its rank in that group; bucket 0 has none."""
        group, rank = [-1], [0]
        for sign, count in enumerate((positive, self.buckets - 1 - positive)):
            own = [i * _GROUPS // count for i in range(count)]
            group += [sign * _GROUPS + g for g in own]
            rank += [i - own.index(g) for i, g in enumerate(own)]
        return torch.tensor(group, device=device), torch.tensor(rank, dtype=torch.uint8, device=device)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        used, heads, means, streams = payloads
        flat = out.view(-1)
        sizes = [_entries.in_use(*row) for row in zip(used, streams, strict=True)]
        if all(size == flat.numel() for size in sizes):
            ops.bucket_add_decoded(streams[:, : flat.numel()], means, flat, scale)
            return
        for rank, size in enumerate(sizes):
            if size == flat.numel():
                ops.bucket_add_decoded(streams[rank : rank + 1], means[rank : rank + 1], flat, scale)
                continue
            keys, codes = self._read(heads[rank], streams[rank, :size], flat.numel())
            flat.index_add_(0, keys, means[rank][codes] * scale)

    def _read(self, head: Tensor, stream: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Read keys and buckets of the sparse form.

        Raises:
            WireError: the keys or buckets cannot be read.
        """
        positive, *sizes = head.tolist()
        edge = sum(_minmax.ROWS * _minmax.columns(size) for size in sizes)
        coded = edge - sum(sizes) // -4
        if not _GROUPS <= positive < self.buckets - _GROUPS or min(sizes) < 0 or coded > stream.numel():
            raise WireError(
                f"sketchml cannot have {positive} positive buckets and groups of {sizes} keys for {n} elements"
            )
        flags = unpack_bits(stream[edge:coded], 2 * sum(sizes)).view(-1, 2).int()
        keys = _minmax.keys_of(stream[coded:], flags[:, 0] + 2 * flags[:, 1], sizes)
        if bool((keys >= n).any()):
            raise WireError(f"sketchml keys must stay below {n}, got {few(keys[keys >= n])}")
        tables = torch.split(stream[:edge], [_minmax.ROWS * _minmax.columns(size) for size in sizes])
        group_of, _ = self._groups(positive, stream.device)
        codes = [
            _minmax.query(table, own).long() + int((group_of == group).nonzero()[0])
            for group, (table, own) in enumerate(zip(tables, torch.split(keys, sizes), strict=True))
        ]
        return keys, torch.cat(codes).clamp_(max=self.buckets - 1)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse keys that are not below n, and parts whose sizes do not match.

        Raises:
            WireError
        """
        used, head, _, stream = payload
        n, nbytes = math.prod(shape), int(used)
        if not 0 <= nbytes <= n:
            raise WireError(f"sketchml uses at most {n} bytes, got {nbytes}")
        if nbytes < n:
            self._read(head, stream[:nbytes], n)


def _sample(flat: Tensor) -> Tensor:
    """A sample of elements for the quantiles; if most are zero, of the others."""
    seen = _entries.sample(flat, _SAMPLE)
    if 2 * int(seen.count_nonzero()) >= seen.numel():
        return seen
    index = _entries.find(flat, lambda _, piece: piece != 0, flat.numel())
    assert index is not None, "no limit"
    return flat[_entries.sample(index, _SAMPLE)]


def _upper(x: Tensor) -> Tensor:
    """The sign, exponent and 7 bits of mantissa of a float32, as int32 from 0 to 65535."""
    return (x.view(torch.int32) >> 16) & (_BINS - 1)


def _ranks(magnitudes: Tensor, count: int) -> Tensor:
    """The quantile, of ``count``, in which each upper half of a magnitude lies."""
    found = torch.bincount(magnitudes, minlength=_BINS // 2)
    below = found.cumsum(0) - found
    return (below * count // max(1, magnitudes.numel())).clamp_(max=count - 1)


def _assign(flat: Tensor, bucket_of: Tensor, codes: Tensor, means: Tensor) -> Tensor:
    """Write the bucket of each element, and the mean of each bucket; return the number of elements of each."""
    sums = torch.empty(_MOST_BUCKETS, dtype=torch.float64, device=flat.device)
    counts = torch.empty(_MOST_BUCKETS, dtype=torch.int64, device=flat.device)
    ops.bucket_encode(flat, bucket_of, codes, sums, counts)
    used = slice(means.numel())
    means.copy_(sums[used] / counts[used].clamp(min=1))
    means[0] = 0.0
    return counts[used]
