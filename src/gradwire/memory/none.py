"""No memory: values that are not sent are lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["NoMemory"]


@dataclass(frozen=True)
class NoMemory(Memory):
    """x = g: right for unbiased methods and casts; a contraction loses what it drops.

    Example:
        >>> NoMemory().buffers
        ()
    """

    name = "none"
    balanced = False
    forgets = True
    keeps_nothing = True
    plain = True

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
        # The code may overflow where the gradient does not, and no remainder tells of it.
        kernels.nonfinite(grad.view(-1), status, capabilities.headroom(compressor))
        self.encoded(compressor, grad, payload, state, key, scale)

    def takes_pieces(self, scale: float) -> bool:
        return True

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        return

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        return

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        return
