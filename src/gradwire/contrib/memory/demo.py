"""Memory of a decoupled momentum: each worker has its own, from which the sent part is subtracted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["DeMoMemory"]


@dataclass(frozen=True)
class DeMoMemory(Memory):
    """Compress a momentum of this worker, and keep in it what was not sent: 4 bytes an element.

    D = beta D + g, from D = 0;  phi: x = D;  psi: D = x - D(Q(x)).

    Momentum and error feedback are one tensor, so the optimizer has no momentum of its own. A frequency or an element
    that is sent in every step has no momentum; the residual grows to that of 1 / (1 - beta) steps. The momentum is kept
    under the name "residual": it is what was not sent, and has the equation of ``Residual(beta)``.

    Args:
        beta: share of the momentum that stays from step to step, in [0, 1). Lower: old gradients fade sooner, and what
            fades before it is sent is lost.

    Raises:
        ConfigError: beta is outside its range.

    Example:
        >>> DeMoMemory().beta, DeMoMemory().buffers
        (0.999, ('residual',))

    Source:
        B. Peng, J. Quesnelle, D. P. Kingma, "DeMo: Decoupled Momentum Optimization", arXiv:2411.19870, 2024.
    """

    beta: float = 0.999

    name = "demo"
    late = True
    residual_is_momentum = True
    buffers = ("residual",)

    def __post_init__(self) -> None:
        require(is_float32(self.beta) and 0 <= self.beta < 1, "DeMoMemory.beta", "in [0, 1)", self.beta)

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
        kernels.add_scaled(grad.view(-1), kept["residual"].view(-1), self.beta, status)
        if scale != 1.0:
            grad.mul_(scale)
        compressor.encode(grad, payload, state, key)
        compressor.add_decoded(payload, grad, -1.0)
        if scale != 1.0:
            grad.mul_(1.0 / scale)
        if capabilities.overflows(compressor):
            # The remainder is not finite where the code overflowed.
            kernels.nonfinite(grad.view(-1), status)
        kernels.swap(grad.view(-1), kept["residual"].view(-1))

    def takes_pieces(self, scale: float) -> bool:
        return scale == 1.0

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        kernels.copy_where(grad.view(-1), kept["residual"].view(-1), when)

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        kept["residual"].view(-1).index_add_(0, places, values)

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kernels.add_scaled(grad.view(-1), kept["residual"].view(-1), self.beta)

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        kernels.copy_where(unsent.view(-1), kept["residual"].view(-1), ~bad.view(1))
