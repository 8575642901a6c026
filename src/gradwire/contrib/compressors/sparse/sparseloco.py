"""The largest elements of each chunk in 2 bits, with their places in the fewest bits there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.base import Compressor
from gradwire.compressors.sparse.ops import tile_topk
from gradwire.contrib.compressors.sparse._combinations import number_width, read_numbers, write_numbers
from gradwire.errors import WireError, is_float32, is_int, require
from gradwire.kernels.bits import pack, unpack
from gradwire.kernels.rice import rice_bytes
from gradwire.kernels.segments import low_bits, read_places, segments, write_places
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["SparseLoCo"]

_TABLE = 2**20
"""Largest table of binomials, in entries of some 80 bytes."""


@dataclass(frozen=True)
class SparseLoCo(Compressor):
    """Send the k = ceil(ratio chunk) largest of each chunk as one of four means, 2 bits each, and their places.

    C(x)_j = mean of the sent values in the bin of x_j, where x_j is sent; 0 elsewhere. The bins are those of
    clamp(round((x_j - mean) / (1.5 sigma) + 2), 0, 3), over all that is sent of a tensor.

    It is meant for changes of many steps, as ``DiLoCo.sparse_loco`` exchanges them, and needs a residual, of which the
    authors keep 95 % from round to round.

    Three things differ from the authors' code: a chunk is so many neighbours of the flattened tensor, and not a block
    of 64 x 64; sigma divides by the number of values, so that |C(x) - x|^2 < |x|^2 for any number of them; and the
    levels travel with their mean added.

    Args:
        ratio: share of the elements that are sent, in (0, 1]; 1/64 is the authors' 64 of 4096.
        chunk: elements of a chunk, 1 to 65536.
        aggregate: "workers" divides the sum of the ranks' payloads by their number. "senders" divides each element by
            the number of ranks that sent it, which is up to W times as much.
        clip: true: what a rank has sent of a tensor is shortened to the median of all ranks' norms, of an even number
            the lower one, so that no rank outweighs the others.
        places: "rice" takes 7.97 bits a place of 64 in 4096, with kernels. "combinations" takes 7.375, where the
            entropy is 7.36: the number of the combination of places in a chunk. Reading it takes 60 ns an element and
            rank, because it counts with large integers on the host.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = SparseLoCo(ratio=0.25, chunk=4)
        >>> code.decompress(code.compress(torch.tensor([0.5, -2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0])), (8,)).tolist()
        [0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0]
        >>> 8 * SparseLoCo(places="combinations").layout((1024, 4096)).nbytes / (1024 * 4096)
        0.146514892578125

    Source:
        A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
        arXiv:2508.15706, 2025; for the number of a combination, T. M. Cover, "Enumerative Source Encoding", IEEE
        Transactions on Information Theory, 1973.
    """

    ratio: float = 0.015625
    chunk: int = 4096
    aggregate: Literal["workers", "senders"] = "workers"
    clip: bool = False
    places: Literal["rice", "combinations"] = "rice"

    name = "sparseloco"
    family = "hybrid"
    reference = "A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, SparseLoCo, arXiv:2508.15706, 2025"
    portable = False
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.chunk, 1, 65536), "SparseLoCo.chunk", "an integer in [1, 65536]", self.chunk)
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "SparseLoCo.ratio", "in (0, 1]", self.ratio)
        known = self.aggregate in ("workers", "senders")
        require(known, "SparseLoCo.aggregate", "'workers' or 'senders'", self.aggregate)
        require(isinstance(self.clip, bool), "SparseLoCo.clip", "True or False", self.clip)
        small = self.ratio * self.chunk * self.chunk <= _TABLE
        fits = self.places == "rice" or (self.places == "combinations" and small)
        allowed = f"'rice', or 'combinations' where ratio * chunk^2 is at most {_TABLE}"
        require(fits, "SparseLoCo.places", allowed, self.places)

    @property
    def average(self) -> bool:
        """Return whether the payloads are averaged one by one: not if each depends on the others."""
        return self.aggregate == "workers" and not self.clip

    def delta(self, n: int) -> float:
        """The share of |x|^2 that is sent at least: ``ratio`` of it is chosen, and of this the bin means have the part
        that lies more than 0.75 sigma beside the mean, where one value is at least.
        """
        count = sum(tiles.total for tiles in self._tiles(n))
        return self.ratio * (1.0 if count < 2 else 0.5 / count) if n else 1.0

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout: the four levels, a code of 2 bits for each value, and the places, chunk by chunk."""
        n = math.prod(shape)
        tiles = self._tiles(n)
        count = sum(each.total for each in tiles)
        if self.places == "rice":
            nbytes = sum(rice_bytes(n, count)) if n else 0
        else:
            nbytes = sum(each.chunks * number_width(each.size, each.k) for each in tiles)
        return Layout(
            (
                Field("levels", torch.float32, 4 if count else 0),
                Field("codes", torch.uint8, -(-count // 4)),
                Field("places", torch.uint8, nbytes),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        if x.numel():
            self._encode(x.view(-1), payload)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        kernels.accumulate(grad, residual, status)
        if not residual.numel():
            return
        where, values = self._encode(residual.view(-1), payload)
        residual.view(-1).index_add_(0, where, values, alpha=-1.0)
        if status is not None:
            # What is left may overflow where the sum did not.
            kernels.nonfinite(residual.view(-1), status)

    def _encode(self, flat: Tensor, payload: Payload) -> tuple[Tensor, Tensor]:
        """Write the payload; return what it decodes to, as places in the tensor and values."""
        levels, codes, places = payload
        tiles = self._tiles(flat.numel())
        count = sum(each.total for each in tiles)
        values = torch.empty(count, dtype=torch.float32, device=flat.device)
        inside = torch.empty(count, dtype=torch.int16, device=flat.device)
        for each in tiles:
            tile_topk(flat[each.elements], values[each.values], inside[each.values], each.size)
        bins = _bins(values)
        levels.copy_(_means(values, bins))
        codes.copy_(pack(bins, 2))
        where = torch.cat([each.spread(low_bits(inside[each.values])) for each in tiles])
        if self.places == "rice":
            counts = torch.empty(segments(flat.numel()), dtype=torch.int32, device=flat.device)
            write_places(where, inside, counts)
            kernels.rice_encode(inside, counts, places, flat.numel())
        else:
            for each, numbers in self._numbers(places, tiles):
                write_numbers(low_bits(inside[each.values]).view(each.chunks, each.k), each.size, numbers)
        return where, levels[bins]

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        if out.numel():
            places, values = self._read(payload, out.numel())
            out.view(-1).index_add_(0, places, values, alpha=scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        if self.average or not out.numel():
            super().add_decoded_many(payloads, out, scale)
            return
        ranks = range(payloads[0].shape[0])
        rows = [self._read(tuple(field[rank] for field in payloads), out.numel()) for rank in ranks]
        weights = [torch.ones_like(values) for _, values in rows]
        if self.clip:
            norms = torch.stack([values.double().norm() for _, values in rows])
            # A rank that has nothing to send says nothing of how long a change is.
            some = norms[norms > 0]
            middle = some.sort().values[(some.numel() - 1) // 2] if some.numel() else norms.new_ones(())
            shorter = (middle / norms).clamp(max=1.0).nan_to_num(1.0).float()
            weights = [weight * factor for weight, factor in zip(weights, shorter, strict=True)]
        if self.aggregate == "senders":
            _, where, senders = torch.unique(
                torch.cat([places for places, _ in rows]), return_inverse=True, return_counts=True
            )
            share = (len(rows) / senders)[where].split([places.numel() for places, _ in rows])
            weights = [weight * own for weight, own in zip(weights, share, strict=True)]
        # One rank after the other, so that all ranks get the same bits.
        for (places, values), weight in zip(rows, weights, strict=True):
            out.view(-1).index_add_(0, places, values * weight, alpha=scale)

    def _read(self, payload: Payload, n: int) -> tuple[Tensor, Tensor]:
        """The places and the values of a payload."""
        levels, codes, places = payload
        tiles = self._tiles(n)
        count = sum(each.total for each in tiles)
        values = levels[unpack(codes, 2, count).long()]
        if self.places == "combinations":
            found = (
                each.spread(torch.tensor(list(read_numbers(numbers, each.size, each.k))))
                for each, numbers in self._numbers(places, tiles)
            )
            return torch.cat(list(found)).to(levels.device), values
        valid = self._read_rice(places, n, count)
        return valid, values[: valid.numel()]

    @staticmethod
    def _numbers(places: Tensor, tiles: Sequence[_Chunks]) -> Iterator[tuple[_Chunks, Tensor]]:
        """Chunks of each size with the bytes of their numbers, a row for each."""
        begin = 0
        for each in tiles:
            width = number_width(each.size, each.k)
            yield each, places[begin : begin + each.chunks * width].view(each.chunks, width)
            begin += each.chunks * width

    def _read_rice(self, places: Tensor, n: int, count: int) -> Tensor:
        """The places in the tensor; of invalid bytes as many as are valid."""
        inside = torch.empty(count, dtype=torch.int16, device=places.device)
        counts = torch.empty(segments(n), dtype=torch.int32, device=places.device)
        kernels.rice_decode(places, inside, counts, n)
        return read_places(inside[: int(counts.sum())], counts)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse places that are too few.

        Raises:
            WireError: codes of Rice end before the last place. Every number is one of a combination.
        """
        n = math.prod(shape)
        count = sum(each.total for each in self._tiles(n))
        if self.places == "rice" and n and self._read_rice(payload[2], n, count).numel() < count:
            raise WireError(f"sparseloco places of {n} elements must be {count} below {n}")

    def _share(self, size: int) -> int:
        return max(1, math.ceil(round(self.ratio * size, 6)))

    def _tiles(self, n: int) -> list[_Chunks]:
        """The whole chunks of a tensor, and the rest of it."""
        whole, rest = divmod(n, self.chunk)
        k = self._share(self.chunk)
        found = [_Chunks(0, 0, whole, self.chunk, k)] if whole else []
        if rest:
            found.append(_Chunks(whole * self.chunk, whole * k, 1, rest, self._share(rest)))
        return found


class _Chunks(NamedTuple):
    """Chunks of one size, one after the other.

    Attributes:
        start: place of the first element.
        first: place of the first value among those that are sent.
        chunks: number of chunks.
        size: elements of each.
        k: values of each.
    """

    start: int
    first: int
    chunks: int
    size: int
    k: int

    @property
    def total(self) -> int:
        return self.chunks * self.k

    @property
    def elements(self) -> slice:
        return slice(self.start, self.start + self.chunks * self.size)

    @property
    def values(self) -> slice:
        return slice(self.first, self.first + self.total)

    def spread(self, inside: Tensor) -> Tensor:
        """The places in the tensor of places in these chunks, int64."""
        starts = torch.arange(self.chunks, device=inside.device) * self.size + self.start
        return (inside.view(self.chunks, self.k) + starts.unsqueeze(1)).view(-1)


def _bins(values: Tensor) -> Tensor:
    """The bin of each value, int64 in 0 to 3; what is not finite makes all of them 2."""
    centred = values.double() - values.double().mean()
    step = 1.5 * centred.square().mean().sqrt()
    return (centred / step).nan_to_num(0.0, 0.0, 0.0).add(2).round().clamp(0, 3).long()


def _means(values: Tensor, bins: Tensor) -> Tensor:
    """The mean of the values in each bin, 0 in an empty one."""
    inside = bins.unsqueeze(0) == torch.arange(4, device=bins.device).unsqueeze(1)
    sums = torch.where(inside, values.double(), 0.0).sum(1)
    return (sums / inside.sum(1).clamp(min=1)).float()
