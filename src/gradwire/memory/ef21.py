"""Error feedback by estimates: what is sent is the change of an estimate, and the optimizer gets their mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import ops
from gradwire.compressors.base import Compressor
from gradwire.memory.base import Memory
from gradwire.types import Key, Payload, State

__all__ = ["EF21"]


@dataclass(frozen=True)
class EF21(Memory):
    """Each worker's estimate h_i of its gradient moves by what it sends; all keep the mean h of the estimates.

    phi: x = g_i - h_i;  psi: h_i = h_i + C(x);  out: h = h + mean_i C(x_i), which is what the optimizer gets.

    All estimates start at 0. A gradient that does not change is approached geometrically: |g - h_i|^2 shrinks by
    1 - delta in a step. Unlike a residual the estimate never holds more than the gradient itself, but it does not
    average the noise of mini-batches either, and a threshold in the gradient's own unit is too large for changes.

    A method of several rounds gives the workers one result, so there all estimates are h itself and ``local`` stays 0.

    Example:
        >>> EF21().buffers
        ('local', 'mean')

    Source:
        P. Richtarik, I. Sokolov, I. Fatkhullin, "EF21: A New, Simpler, Theoretically Better, and Practically Faster
        Error Feedback", NeurIPS 2021.
    """

    name = "ef21"
    buffers = ("local", "mean")

    def encode(
        self, compressor: Compressor, grad: Tensor, kept: Mapping[str, Tensor], payload: Payload, state: State,
        key: Key, status: Tensor, scale: float = 1.0,
    ) -> None:  # fmt: skip
        local = kept["local"]
        grad.sub_(local)
        ops.nonfinite(grad.view(-1), status)
        if scale == 1.0:
            compressor.encode(grad, payload, state, key)
        else:
            compressor.encode_scaled(grad, scale, payload, state, key)
        grad.copy_(local)
        compressor.add_decoded(payload, local, 1.0 / scale)
        # A code may overflow where x did not.
        ops.nonfinite(local.view(-1), status)

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kept["local"].copy_(grad)

    def compensate(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        grad.sub_(kept["mean"])

    def update(self, unsent: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        return

    def begin(self, out: Tensor, kept: Mapping[str, Tensor]) -> None:
        out.copy_(kept["mean"])

    def finish(self, out: Tensor, kept: Mapping[str, Tensor], bad: Tensor) -> None:
        torch.where(bad, kept["mean"], out, out=kept["mean"])
