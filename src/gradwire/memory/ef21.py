"""Error feedback by estimates: the change of an estimate is sent, and the optimizer gets the mean of the estimates."""

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

__all__ = ["EF21Memory"]


@dataclass(frozen=True)
class EF21Memory(Memory):
    """Each worker's estimate h_i of its gradient moves by what it sends; all keep the mean h of the estimates.

    phi: x = g_i - h_i;  psi: h_i = h_i + C(x);  out: h = h + mean_i C(x_i), which is what the optimizer gets.

    All estimates start at 0. A gradient that does not change is approached geometrically: |g - h_i|^2 shrinks by
    1 - delta in a step. Unlike a residual the estimate never holds more than the gradient itself, but it does not
    average the noise of mini-batches either, and a threshold or step in the gradient's own unit is too large for
    changes, so methods with a fixed one are refused.

    With ``eta`` below 1 it is the running mean of a worker's gradients that is estimated, x = u_i - h_i with
    u_i = (1 - eta) u_i + eta g_i from u_i = 0, which does average that noise (EF21-SGDM): 16 bytes an element in place
    of 8, 4 of them work space. The optimizer then needs no momentum of its own.

    A method of several rounds gives the workers one result, so there all estimates are h itself and ``local`` stays 0.

    Args:
        eta: weight of the fresh gradient, in (0, 1]; 0.1 to 1 are usual. Lower: less noise, and a slower answer.

    Raises:
        ConfigError: eta is outside its range.

    Example:
        >>> EF21Memory().buffers, EF21Memory(eta=0.1).buffers
        (('local', 'mean'), ('local', 'mean', 'momentum', 'undo'))

    Source:
        P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster
        Error Feedback", NeurIPS 2021; with momentum, I. Fatkhullin, A. Tyurin, P. Richtarik, "Momentum Provably
        Improves Error Feedback!", NeurIPS 2023.
    """

    eta: float = 1.0

    name = "ef21"
    late = True
    transient = ("undo",)

    def __post_init__(self) -> None:
        require(is_float32(self.eta) and 0 < self.eta <= 1, "EF21Memory.eta", "in (0, 1]", self.eta)
        require(
            float32(1 - self.eta) < 1, "EF21Memory.eta", "above 2**-25, up to which the mean forgets nothing", self.eta
        )

    @property
    def buffers(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the tensors kept for each element: those of the running mean only if there is one."""
        return ("local", "mean") if self.eta == 1 else ("local", "mean", "momentum", "undo")

    def check_compressor(self, compressor: Compressor) -> None:
        loses = compressor.feedback == "built-in" or (compressor.feedback == "required" and compressor.elementwise)
        # A threshold that the ranks agree on follows the differences.
        if loses and capabilities.advice(compressor) == 0 and not capabilities.contraction(compressor):
            raise ConfigError(
                "memory 'ef21' sends differences, which become small, and with a threshold or step that is fixed, as "
                f"that of {compressor!r}, the estimates need not come nearer: use memory='residual', or force=True"
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
        local = kept["local"]
        if self.eta < 1:
            # Copied, because arithmetic would not restore the same bits of a running mean.
            kernels.copy_where(kept["momentum"].view(-1), kept["undo"].view(-1))
            self._average(grad, kept["momentum"])
        kernels.add_scaled(grad.view(-1), local.view(-1), -1.0, status)
        self.encoded(compressor, grad, payload, state, key, scale)
        # The old estimate is left in the gradient, for ``rollback``.
        kernels.copy_where(local.view(-1), grad.view(-1))
        compressor.add_decoded(payload, local, 1.0 / scale)
        # A code may overflow where x did not.
        kernels.nonfinite(local.view(-1), status)

    def _average(self, grad: Tensor, mean: Tensor) -> None:
        """Take the gradient into the running mean, and replace it by that."""
        kernels.momentum_update(grad.view(-1), mean.view(-1), 1 - self.eta)
        kernels.copy_where(mean.view(-1), grad.view(-1))

    def takes_pieces(self, scale: float) -> bool:
        return True

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor], when: Tensor | None = None) -> None:
        kernels.copy_where(grad.view(-1), kept["local"].view(-1), when)
        if self.eta < 1:
            kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), when)

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        kept["local"].view(-1)[places] = grad.view(-1)[places]

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        if self.eta < 1:
            # The new mean waits in the work space until the step is known to count.
            kernels.copy_where(kept["momentum"].view(-1), kept["undo"].view(-1))
            self._average(grad, kept["undo"])
        kernels.add_scaled(grad.view(-1), kept["mean"].view(-1), -1.0)

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        if self.eta < 1:
            # Until here the old mean was kept, so there is nothing to undo in a step that does not count.
            kernels.copy_where(kept["undo"].view(-1), kept["momentum"].view(-1), ~bad.view(1))

    def begin(self, out: Tensor, kept: Mapping[str, Tensor]) -> None:
        kernels.copy_where(kept["mean"].view(-1), out.view(-1))

    def finish(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        # Only where the step counts, because the estimates were restored elsewhere.
        kernels.copy_where(out.view(-1), kept["mean"].view(-1), ~bad.view(1))


EF21 = EF21Memory  # The name until 0.2.
