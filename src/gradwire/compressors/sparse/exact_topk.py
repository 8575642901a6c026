"""Exactly k elements of largest magnitude as values and packed indices: the payload of several methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, float32, int16, int32

from gradwire.compressors.decoders import ManyDecoder
from gradwire.compressors.sparse import ops
from gradwire.errors import is_float32, require
from gradwire.helpers import count_of
from gradwire.kernels.segments import check_places, segments
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["ExactTopK"]


@dataclass(frozen=True)
class ExactTopK(ManyDecoder):
    """Base for the k = max(1, ceil(ratio n)) elements of largest magnitude; ties go to the lower index, NaN counts as
    largest.

    Payload: float32 values[k], int32 counts of each segment of 65536 elements, 16 bits of each increasing index.
    """

    feedback = "required"
    ratio: float = 0.001

    exact_entries = True
    takes_pieces = True
    overflows = False

    def __post_init__(self) -> None:
        ok = is_float32(self.ratio) and 0 < self.ratio <= 1
        require(ok, f"{type(self).__name__}.ratio", "in (0, 1]", self.ratio)

    def delta(self, n: int) -> float:
        return self.count(n) / n if n else 1.0

    def count(self, n: int) -> int:
        """The number k of elements sent of ``n``."""
        return count_of(self.ratio, n)

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        k = self.count(n)
        return Layout((Field("values", float32, k), Field("counts", int32, segments(n)), Field("indices", int16, k)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        values, counts, indices = payload
        ops.topk_encode(x, values, indices, counts)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        values, counts, indices = payload
        ops.topk_encode_feedback(grad, residual, values, indices, counts, status)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        values, counts, indices = payloads
        ops.sparse_add_decoded(values, indices, counts, out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse counts and indices that do not describe k different elements of the tensor.

        Raises:
            WireError: a count is negative, they do not sum to k, or the indices do not increase and stay below n.
        """
        _, counts, indices = payload
        check_places(self.name, counts, indices, math.prod(shape))
