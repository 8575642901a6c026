"""Memory of a momentum on the sender's side: a running mean of gradients is compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.kernels.float32 import float32
from gradwire.memory.base import OneRoundMemory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["Momentum"]


@dataclass(frozen=True)
class Momentum(OneRoundMemory):
    """Compress the running mean of the gradients; nothing that was not sent comes back: 4 bytes an element.

    u = beta u + (1 - beta) g, from u = 0;  phi: x = u.

    Args:
        beta: share of the mean that stays, in [0, 1). Larger: less noise in the signs, and a slower answer.

    Raises:
        ConfigError: beta is outside its range.

    Example:
        >>> Momentum().buffers
        ('momentum',)

    Source:
        J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, "signSGD with Majority Vote is Communication Efficient
        and Fault Tolerant", ICLR 2019.
    """

    beta: float = 0.9

    name = "momentum"
    beta_is_momentum = True
    buffers = ("momentum",)
    balanced = False

    def __post_init__(self) -> None:
        fades = is_float32(self.beta) and 0 <= float32(self.beta) < 1
        require(fades, "Momentum.beta", "in [0, 1) in float32", self.beta)

    def encode(
        self,
        compressor: Compressor,
        grad: Tensor,
        kept: Mapping[str, Tensor],
        payload: Payload,
        state: State,
        key: Key,
        status: Tensor,
        scale: float = 1.0,
    ) -> None:
        momentum = kept["momentum"]
        capabilities.encode_momentum(compressor, grad, momentum, self.beta, payload, state, key, status)
        if scale != 1.0:
            capabilities.encode_scaled(compressor, momentum, scale, payload, state, key)

    def takes_pieces(self, scale: float) -> bool:
        """Only where the mean itself is encoded."""
        return scale == 1.0

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        kernels.copy_where(grad.view(-1), kept["momentum"].view(-1), when)
