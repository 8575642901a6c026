"""The largest elements, exactly, with their indices packed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors.base import Compressor, Feedback
from gradwire.errors import WireError, is_float32, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["TopK"]

_SEGMENT = 1 << 16


@dataclass(frozen=True)
class TopK(Compressor):
    """Send the k elements of largest magnitude and keep the rest; k = max(1, ceil(ratio n)).

    C(x) = x on the k largest |x|, 0 elsewhere:  |C(x) - x|^2 <= (1 - k/n) |x|^2 for every x.

    Ties go to the lower index; NaN counts as largest, so it reaches every rank. An index costs 16 bits and 32 for each
    65536 elements: values in float32, the count of each segment of 65536, the low halves of the increasing indices.

    Args:
        ratio: in (0, 1]. Lower: fewer bytes, and what is left out waits longer in the residual.

    Raises:
        ConfigError: the ratio is outside (0, 1].

    Example:
        >>> code = TopK(ratio=0.4)
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]

    Source:
        A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; S. U. Stich,
        J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    ratio: float = 0.01

    name = "topk"
    reference = "A. F. Aji, K. Heafield, EMNLP 2017; S. U. Stich, J.-B. Cordonnier, M. Jaggi, NeurIPS 2018"

    def __post_init__(self) -> None:
        require(is_float32(self.ratio) and 0 < self.ratio <= 1, "TopK.ratio", "in (0, 1]", self.ratio)

    @property
    def feedback(self) -> Feedback:
        return "required"

    @property
    def contraction(self) -> bool:
        return True

    def delta(self, n: int) -> float:
        return self.count(n) / n if n else 1.0

    def count(self, n: int) -> int:
        """k: how many of ``n`` elements are sent.

        >>> TopK(ratio=0.07).count(100)
        7
        """
        # 0.07 * 100 is 7.000000000000001 in binary; its ceiling must not be 8.
        return min(n, max(1, math.ceil(round(self.ratio * n, 6))))

    def layout(self, shape: Sequence[int]) -> Layout:
        n = math.prod(shape)
        k, segments = self.count(n), -(-n // _SEGMENT)
        return Layout((
            Field("values", torch.float32, k),
            Field("counts", torch.int32, segments),
            Field("indices", torch.int16, k),
        ))  # fmt: skip

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        values, counts, indices = payload
        ops.topk_encode(x.view(-1), values, indices, counts)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        values, counts, indices = payload
        ops.topk_encode_feedback(grad.view(-1), residual.view(-1), values, indices, counts, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_many(tuple(field.unsqueeze(0) for field in payload), out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        values, counts, indices = payloads
        ops.sparse_add_decoded(values, indices, counts, out.view(-1), scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse counts and indices that do not describe k different elements of the tensor.

        Raises:
            WireError: a count is negative, they do not sum to k, or the indices are not increasing and below n.
        """
        values, counts, indices = payload
        n, k = math.prod(shape), values.numel()
        if bool((counts < 0).any()) or int(counts.sum()) != k:
            raise WireError(f"topk counts must be >= 0 and sum to {k}, got {_few(counts)}")
        segments = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)
        where = segments * _SEGMENT + (indices.long() & (_SEGMENT - 1))
        if bool((where.diff() <= 0).any()) or bool((where[-1:] >= n).any()):
            raise WireError(f"topk indices must increase and stay below {n}, got {_few(where)}")


def _few(values: Tensor) -> str:
    shown = ", ".join(map(str, values[:8].tolist()))
    return f"[{shown}, ...]" if values.numel() > 8 else f"[{shown}]"
