"""Memory with momentum before compression; momentum and velocity are reset where an element was sent.

Invariants:
    Parameters that travel uncompressed (small ones, excluded ones, all in a dense warm-up) get the same momentum here,
    because the optimizer has none of its own. Each rank keeps its own u_i = momentum u_i + g_i and continues with it if
    the parameter is compressed from some step on.

Why:
    The mean of the u_i over the ranks is the momentum of the mean gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.kernels.float32 import float32
from gradwire.memory.base import Memory, OneRoundMemory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["DGCMemory"]


@dataclass(frozen=True)
class DGCMemory(OneRoundMemory):
    """Accumulate a momentum u into a velocity v, send v: 8 bytes an element, and 8 of work space.

    g = g min(1, clip / |g|);  u = momentum u + g;  v = v + u;  then v = v - D(Q(v)), and u = 0 where D(Q(v)) is not 0.

    Without the mask on u, momentum would push on in the direction of what was sent long ago. ``nesterov``:
    u = momentum (u + g), v = v + u + g. The velocity is kept under the name "residual": it is what was not sent.

    What travels dense gets u, or with ``nesterov`` u + g: there is no velocity, and nothing is forgotten.

    Args:
        momentum: weight of the old momentum, in [0, 1). The optimizer must have none of its own.
        nesterov: look ahead.
        clip: largest Euclidean norm of each tensor's own gradient (of each shard's, with strategy ``two_phase``);
            None does not clip. The paper takes its threshold for the whole gradient times W^(-1/2), W the workers:
            the mean over W of independent gradients is that much shorter than each.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> DGCMemory().buffers
        ('residual', 'momentum', 'undo', 'sent')

    Source:
        Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
        for Distributed Training", ICLR 2018.
    """

    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None

    name = "dgc"
    late = True
    residual_is_momentum = True
    buffers = ("residual", "momentum", "undo", "sent")
    transient = ("undo", "sent")

    def __post_init__(self) -> None:
        fades = is_float32(self.momentum) and 0 <= float32(self.momentum) < 1
        require(fades, "DGCMemory.momentum", "in [0, 1) in float32", self.momentum)
        require(isinstance(self.nesterov, bool), "DGCMemory.nesterov", "True or False", self.nesterov)
        ok = self.clip is None or (is_float32(self.clip) and self.clip > 0)
        require(ok, "DGCMemory.clip", "None or a finite number > 0", self.clip)

    @property
    def tensorwise(self) -> bool:
        """Return whether the norm of a parameter's gradient is limited."""
        return self.clip is not None

    @property
    def dense(self) -> DenseMomentum:
        return DenseMomentum(self.momentum, self.nesterov, self.clip)

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
        velocity, sent = kept["residual"], kept["sent"]
        # The old momentum goes to ``undo``, because a momentum that was masked cannot be computed back.
        self.dense.accelerate(grad, kept["momentum"], kept["undo"])
        # The old velocity is left in the gradient.
        kernels.accumulate(grad.view(-1), velocity.view(-1), status)
        self.encoded(compressor, velocity, payload, state, key, scale)
        kernels.fill_where(sent.view(-1), 0.0)
        # As the receivers decode it: only that was sent.
        compressor.add_decoded(payload, sent, 1.0 / scale)
        kernels.mask_momentum(velocity.view(-1), kept["momentum"].view(-1), sent.view(-1))
        if capabilities.overflows(compressor):
            # What stays is not finite where the code overflowed.
            kernels.nonfinite(velocity.view(-1), status)

    def takes_pieces(self, scale: float) -> bool:
        """Return whether pieces can be encoded: the norm of a tensor's gradient is no operation."""
        return self.clip is None

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        kernels.copy_where(grad.view(-1), kept["residual"].view(-1), when)
        kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), when)

    def begin_or_undo(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), bad)
        kernels.begin_sum(out.view(-1), kept["residual"].view(-1), bad)

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        """Add values that were sent in vain back to the velocity, and restore the momentum there."""
        before, momentum = grad.view(-1)[places], kept["undo"].view(-1)[places]
        kept["residual"].view(-1).index_add_(0, places, values)
        momentum_now = values - before
        if self.nesterov:
            # The velocity grew by u + g, and u is momentum (u before + g).
            momentum_now.add_(momentum).mul_(self.momentum / (1 + self.momentum))
        kept["momentum"].view(-1)[places] = momentum_now


@dataclass(frozen=True)
class DenseMomentum(Memory):
    """The momentum of ``DGCMemory`` for dense parameters: u = momentum u + g is sent in place of g.

    Args:
        momentum: weight of the old momentum, as for ``DGCMemory``, and so are the others.
        nesterov: u = momentum (u + g), and u + g is sent.
        clip: largest norm of the gradient of each tensor on each rank, before it is accumulated.
    """

    momentum: float
    nesterov: bool
    clip: float | None

    name = "dgc dense"
    buffers = ("momentum", "undo")
    transient = ("undo",)

    def accelerate(self, grad: Tensor, momentum: Tensor, undo: Tensor | None, status: Tensor | None = None) -> None:
        """Add a gradient to the momentum, and replace it by the growth of the velocity; ``undo``
        receives the old momentum.
        """
        if self.clip is not None:
            # The norm is in float64: the squares of a gradient that is still finite overflow in float32.
            norm = torch.linalg.vector_norm(grad, dtype=torch.float64)
            grad.mul_((self.clip / norm).clamp(max=1.0))
        old = None if undo is None else undo.view(-1)
        kernels.accumulate_momentum(grad.view(-1), momentum.view(-1), old, self.momentum, self.nesterov, status)

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
        self.accelerate(grad, kept["momentum"], kept["undo"], status)
        self.encoded(compressor, grad, payload, state, key, scale)

    def takes_pieces(self, scale: float) -> bool:
        """Return whether pieces can be encoded, and compensated: the norm of a tensor's gradient is no operation."""
        return self.clip is None

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), when)

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        # The new momentum waits in the work space until the step is known to count.
        kernels.copy_where(kept["momentum"].view(-1), kept["undo"].view(-1))
        self.accelerate(grad, kept["undo"], None)

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        # Until here the old momentum was kept, so there is nothing to undo in a step that does not count.
        kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), ~bad.view(1))
