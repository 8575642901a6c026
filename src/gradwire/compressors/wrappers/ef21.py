"""Error feedback by the change of an estimate, with any contraction: the method that the memory of this name makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradwire import registry
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.compressors.wrappers.around import Wrapper, declare_as
from gradwire.errors import require
from gradwire.vocabulary import Key, Layout, Payload, State

__all__ = ["EF21"]


@dataclass(frozen=True)
class EF21(Wrapper):
    """Send C(g - h), the change of an estimate h of the gradient, and let the optimizer see the mean estimate.

    h_i = h_i + C(g_i - h_i);  h = h + mean_i C(g_i - h_i), after which the optimizer steps along h.

    The bytes are those of the inner method; the estimates are in memory "ef21", which this name asks for. The same
    memory serves a method without this name around it: ``memory="ef21"``.

    Args:
        inner: C, a contraction of one round, such as ``TopK()``.

    Raises:
        ConfigError: the inner method is no contraction, so the estimates need not approach the gradient, or it turns
            their mean into signs.

    Example:
        >>> import torch
        >>> code = EF21(inner=registry.build("compressors", "topk", {"ratio": 0.4}))
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]

    Source:
        P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster
        Error Feedback", NeurIPS 2021.
    """

    inner: Compressor = field(default_factory=lambda: registry.build("compressors", "topk"))

    name = "ef21"
    family = "wrapper"
    reference = "P. Richtarik, I. Sokolov, I. Fatkhullin, EF21, NeurIPS 2021"
    memory = "ef21"
    feedback = "required"

    def __post_init__(self) -> None:
        inner = self.inner
        ok = isinstance(inner, Compressor) and capabilities.contraction(inner) and not capabilities.in_rounds(inner)
        require(ok, "EF21.inner", "a contraction of one round, such as TopK()", inner)
        require(not capabilities.votes(inner), "EF21.inner", "a method that hands out the mean and not its sign", inner)
        declare_as(inner, self, "summable", "random", "elementwise", "fixed_size", "portable", "factorises", "headroom")

    @property
    def takes_pieces(self) -> bool:
        """Return whether the inner method takes pieces."""
        return capabilities.takes_pieces(self.inner)

    def pays_for(self, shape: Sequence[int]) -> bool:
        return capabilities.pays_for(self.inner, shape)

    def layout(self, shape: Sequence[int]) -> Layout:
        return self.inner.layout(shape)

    def traffic(self, shape: Sequence[int]) -> float:
        return capabilities.traffic(self.inner, shape)

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        self.inner.encode(x, payload, state, key)

    def encode_scaled(self, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
        capabilities.encode_scaled(self.inner, x, scale, payload, state, key)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        self.inner.encode_feedback(grad, residual, payload, state, key, status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.inner.add_decoded(payload, out, scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.inner.add_decoded_many(payloads, out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        self.inner.check_payload(payload, shape)
