"""Memory that scales gradients by their own recent size, element by element, so that a code's error is in proportion.

Invariants:
    * The scale s is computed from the mean that arrived, so all ranks have the same bits of it, and the mean of the
      payloads is decoded with one multiplication: s mean_i C(g_i / s) = mean_i s C(g_i / s).
    * s is at least ``floor`` times its root mean square, so no gradient gets more than 1 / floor^2 times the noise that
      it has without a memory.

Why:
    * Adam divides by the root of v_j, the mean square of element j. Of codes whose noise is even over a block, that
      which adds n_j to element j with the least sum_j n_j / v_j has s_j^2 in proportion to v_j (by Cauchy and Schwarz).
    * The next gradient is not known, and s follows the recent ones. In units of s a gradient has at most 1 / min(s)^2
      times its energy, which the code turns into noise, and the noise is multiplied by the mean of s^2 again. Hence the
      bound by ``floor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor
from gradwire.errors import ConfigError, is_float32, require
from gradwire.kernels.float32 import float32
from gradwire.memory.base import Memory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["Preconditioned"]


@dataclass(frozen=True)
class Preconditioned(Memory):
    """Compress each gradient divided by the root mean square of what arrived for its elements: 4 bytes an element.

    phi: x_i = g_i / s;  out: a = s mean_i C(x_i);  s = max(sqrt(beta s^2 + (1 - beta) a^2), floor rms(s))

    It is for codes whose noise is even over a block, as those are that rotate or round at random, under an optimizer
    that divides by the root of a second moment, as Adam does: elements with small gradients get little noise, and not
    as much as their large neighbours. What is not sent is lost, as without a memory, and what is right on average stays
    so, because s does not depend on this step. In the first step s is 1, and then the mean magnitude of what arrived,
    from which it moves to that of each element. Where what arrives has more than twice the root mean square of s, all
    of s grows at once, because one step does not say how large each element is.

    Args:
        beta: share of the mean square that stays, in [0, 1). Larger: less noise in s, and a slower answer.
        floor: least s over its root mean square in the tensor, in [0, 1]. Smaller: less noise where gradients were 0,
            and more of it everywhere in the step in which they come back: at most 1 / floor^2 times that of the code
            without a memory. With 1 all are nearly alike.

    Raises:
        ConfigError: a value is outside its range, or later the code is one of a narrow range, such as ``fp16``.

    Example:
        >>> Preconditioned().buffers
        ('scale',)

    Source:
        Ours. For a preconditioner that is known beforehand: B. Wang, M. Safaryan, P. Richtarik, "Theoretically Better
        and Numerically Faster Distributed Optimization with Smoothness-Aware Quantization Techniques", NeurIPS 2022.
    """

    beta: float = 0.95
    floor: float = 0.75

    name = "preconditioned"
    tensorwise = True
    buffers = ("scale",)
    balanced = False
    forgets = True
    follows_mean = True

    def __post_init__(self) -> None:
        fades = is_float32(self.beta) and 0 <= float32(self.beta) < 1
        require(fades, "Preconditioned.beta", "in [0, 1) in float32", self.beta)
        require(is_float32(self.floor) and 0 <= self.floor <= 1, "Preconditioned.floor", "in [0, 1]", self.floor)

    def check_compressor(self, compressor: Compressor) -> None:
        # A step that overflows leaves s as it is, so that after many steps of zeros all others would overflow, too.
        if capabilities.headroom(compressor) > capabilities.headroom.default(compressor):
            raise ConfigError(
                "memory 'preconditioned' divides by scales that become small where gradients are 0, and the code of "
                f"{compressor!r} is infinite for large quotients: use bf16, which has the range of float32, "
                "memory='none', or force=True"
            )

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
        kernels.precondition(grad.view(-1), kept["scale"].view(-1), status)
        self.encoded(compressor, grad, payload, state, key, scale)

    def takes_pieces(self, scale: float) -> bool:
        return True

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        return

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kernels.precondition(grad.view(-1), kept["scale"].view(-1))

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        return

    def finish(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        # From the mean, which is the same on all ranks, so that all have the same scale.
        kernels.precondition_update(out.view(-1), kept["scale"].view(-1), bad.view(1), self.beta, self.floor)
