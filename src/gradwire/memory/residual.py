"""Error feedback: what was not sent is added to the next gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.memory.base import Memory
from gradwire.types import Key, Payload, State

__all__ = ["Residual"]


@dataclass(frozen=True)
class Residual(Memory):
    """Compensate with the residual, keep the new one: 4 bytes an element.

    phi: x = beta m + gamma g;  psi: m = x - D(Q(x)).

    Args:
        beta: in (0, 1]; how much of the residual returns. Below 1 old gradients fade, and what fades is lost.
        gamma: > 0; weight of the fresh gradient.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> Residual().buffers
        ('residual',)

    Source:
        H. Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021,
        equation 4, with the decompressed value in psi.
    """

    beta: float = 1.0
    gamma: float = 1.0

    name = "residual"
    buffers = ("residual",)

    def __post_init__(self) -> None:
        require(is_float32(self.beta) and 0 < self.beta <= 1, "Residual.beta", "in (0, 1]", self.beta)
        require(is_float32(self.gamma) and self.gamma > 0, "Residual.gamma", "a finite number > 0", self.gamma)

    def encode(
        self, compressor: Compressor, grad: Tensor, kept: Mapping[str, Tensor], payload: Payload, state: State,
        key: Key, status: Tensor, scale: float = 1.0,
    ) -> None:  # fmt: skip
        residual = kept["residual"]
        if self.beta == self.gamma == scale == 1.0:
            compressor.encode_feedback(grad, residual, payload, state, key, status)
            return
        self.compensate(grad, kept)
        grad.mul_(scale)
        ops.nonfinite(grad.view(-1), status)
        compressor.encode(grad, payload, state, key)
        compressor.add_decoded(payload, grad, -1.0)
        grad.mul_(1.0 / scale)
        ops.swap(grad.view(-1), residual.view(-1))

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kept["residual"].copy_(grad)

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        grad.mul_(self.gamma).add_(kept["residual"], alpha=self.beta)

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        torch.where(bad, kept["residual"], unsent, out=kept["residual"])
