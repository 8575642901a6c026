"""Sparsification that sends the largest positive and the largest negative elements, each as one mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.decoders import ManyDecoder
from gradwire.contrib.compressors import _entries
from gradwire.contrib.compressors.sparse._chosen import Entries, add_ranks, take_beyond
from gradwire.errors import WireError, is_float32, require
from gradwire.helpers import count_of
from gradwire.kernels.bits import pack, unpack_bits
from gradwire.kernels.segments import cache_pieces, check_places, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["AdaptiveThreshold"]

_LEAST_SAMPLE = 4096
_SMALLEST = 2.0**-149


@dataclass(frozen=True)
class AdaptiveThreshold(ManyDecoder):
    """Send the share ``ratio`` of the positive and of the negative elements that is largest, all as their mean.

    P = {j : x_j >= tau+}, N = {j : -x_j >= tau-};  C(x) = mean of x over P on P, over N on N, 0 elsewhere:
    |C(x) - x|^2 = |x|^2 - |P| mean_P^2 - |N| mean_N^2, a projection on the chosen sets.

    The thresholds are quantiles of a sample of max(4096, 32 / ratio) elements, spread evenly over the tensor; from a
    smaller tensor all are taken. A sign that the sample does not show is rare, and sent whole. Zero is never sent.

    An entry is a 16-bit index and a sign bit. Where 2 bits for every element take less (from 12 % on), they travel.

    Args:
        ratio: share of the elements of each sign that is sent, in (0, 1). Lower: fewer bytes, longer waits.
        joint: one threshold for both signs, the quantile of |x|, as LBANN has it; else each sign has its own share. The
            paper can be read either way.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = AdaptiveThreshold(ratio=0.5)
        >>> code.decompress(code.compress(torch.tensor([1.0, 3.0, -4.0, 0.0, 5.0, 1.0])), (6,)).tolist()
        [0.0, 4.0, -4.0, 0.0, 4.0, 0.0]

    Source:
        N. Dryden, T. Moon, S. A. Jacobs, B. Van Essen, "Communication Quantization for Data-Parallel Training of Deep
        Neural Networks", MLHPC 2016.
    """

    ratio: float = 0.01
    joint: bool = False

    name = "adaptive_threshold"
    family = "hybrid"
    reference = "N. Dryden, T. Moon, S. A. Jacobs, B. Van Essen, MLHPC 2016"
    fixed_size = False
    used_on_host = True
    overflows = False
    feedback = "required"

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio < 1, "AdaptiveThreshold.ratio", "in (0, 1)", self.ratio)
        require(isinstance(self.joint, bool), "AdaptiveThreshold.joint", "True or False", self.joint)

    def delta(self, n: int) -> float:
        """The contraction constant 1 / n: elements of a sign that are left out are below the mean of those that are
        sent.
        """
        return 1 / max(1, n)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("means", torch.float32, 2),
                Field("counts", torch.int32, segments(n)),
                Field("stream", torch.uint8, _dense_bytes(n)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        used, means, counts, stream = payload
        flat = x.view(-1)
        high, low = self._thresholds(_entries.sample(flat, max(_LEAST_SAMPLE, math.ceil(32 / self.ratio))))
        # Entries must take fewer bytes than the dense form: its length is what tells it from them.
        limit = 8 * (_dense_bytes(flat.numel()) - 1) // 17
        entries = take_beyond(flat, counts, high, low, limit)
        if entries is None:
            counts.zero_()
            means.copy_(_means(flat, high, low))
            _entries.fill(used, stream, *(_codes(piece, high, low) for _, piece in cache_pieces(flat)))
            return
        values, places = entries
        negative = values < 0
        means.copy_(_means_taken(values, negative))
        _entries.fill(used, stream, places, pack(negative, 1))

    def _thresholds(self, sample: Tensor) -> tuple[float, float]:
        """The least positive element that is sent, and the least magnitude of a negative one; both above 0."""
        if self.joint:
            both = self._quantile(sample.abs())
            return both, both
        return self._quantile(sample), self._quantile(-sample)

    def _quantile(self, values: Tensor) -> float:
        values = values[values > 0]
        if values.numel() == 0:
            return _SMALLEST
        return float(values.topk(count_of(self.ratio, values.numel())).values[-1])

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        add_ranks(payloads, out, scale, _read, _add_dense)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse entries that do not describe different elements of the tensor.

        Raises:
            WireError: the bytes in ``used`` are neither those of whole entries nor of the dense form, or a place is
                impossible.
        """
        used, _, counts, stream = payload
        n, nbytes = math.prod(shape), int(used)
        dense, k = _dense_bytes(n), 8 * nbytes // 17
        if nbytes == dense:
            return
        if not 0 <= nbytes < dense or nbytes != 2 * k - k // -8:
            raise WireError(f"{self.name} must use {dense} bytes, or those of whole entries below that, got {nbytes}")
        check_places(self.name, counts, _entries.part(stream, 0, k, torch.int16), n)


def _read(payload: Payload, n: int) -> list[Entries] | None:
    used, means, counts, stream = payload
    nbytes = _entries.in_use(used, stream)
    if nbytes == _dense_bytes(n):
        return None
    k = 8 * nbytes // 17
    return [Entries(stream[2 * k : 2 * k - k // -8], _entries.part(stream, 0, k, torch.int16), counts, means)]


def _add_dense(payload: Payload, flat: Tensor, scale: float) -> None:
    _, means, _, stream = payload
    for begin, piece in cache_pieces(flat):
        codes = stream[begin // 4 : _dense_bytes(begin + piece.numel())]
        chosen, negative = unpack_bits(codes, 2 * len(piece)).view(-1, 2).T
        piece.add_(torch.where(chosen, torch.where(negative, means[1], means[0]), 0.0), alpha=scale)


def _dense_bytes(n: int) -> int:
    return -(-n // 4)


def _positive(x: Tensor, high: float) -> Tensor:
    """A mask of the elements sent with the positive mean; NaN is among them, so that the mean shows it."""
    return (x < high).logical_not_()


def _codes(x: Tensor, high: float, low: float) -> Tensor:
    negative = x <= -low
    return pack(torch.stack([_positive(x, high) | negative, negative], 1), 1)


def _means_taken(values: Tensor, negative: Tensor) -> Tensor:
    """The means of elements taken already, without choosing as ``_means`` does. A NaN counts as positive."""
    parts = values.clamp(min=0.0), values.clamp(max=0.0).nan_to_num_(nan=0.0, neginf=-math.inf)
    below = negative.count_nonzero()
    counts = torch.stack([negative.numel() - below, below])
    return torch.stack([part.sum(dtype=torch.float64) for part in parts]) / counts.clamp_(min=1)


def _means(x: Tensor, high: float, low: float) -> Tensor:
    """The means of the sent elements of either sign: float64 sums over their counts, 0 if there are none."""
    sums = torch.zeros(2, dtype=torch.float64, device=x.device)
    counts = torch.zeros(2, dtype=torch.float64, device=x.device)
    for _, piece in cache_pieces(x):
        for sign, mark in enumerate((_positive(piece, high), piece <= -low)):
            sums[sign] += torch.where(mark, piece, 0.0).sum(dtype=torch.float64)
            counts[sign] += mark.count_nonzero()
    return sums / counts.clamp(min=1)
