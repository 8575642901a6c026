"""Memory that sends an element when its accumulated gradient exceeds its own noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.base import Compressor
from gradwire.errors import is_float32, require
from gradwire.memory.base import OneRoundMemory
from gradwire.vocabulary import Key, Payload, State

__all__ = ["VarianceMemory"]


@dataclass(frozen=True)
class VarianceMemory(OneRoundMemory):
    """Accumulate gradients in r, squares in v, send r where r^2 > alpha v: 8 bytes an element, and 8 of work space.

    r = r + g;  v = v + s;  where r^2 > alpha v and the code sends it: r = v = 0; elsewhere v = zeta v.

    s is the sum over the B samples of a batch of (gradient of the sample / B)^2, so that v estimates the variance of r.
    A framework that gives the mean alone does not know it: ``squares="gradient"`` takes g^2, as if there were one
    sample, which sends later; with ``"observed"`` hooks of layers, or micro-batches of an accumulated gradient, add s
    by ``observe`` before each exchange.

    Args:
        alpha: > 0, the paper's 1 to 2. Higher: fewer elements are sent, later.
        zeta: share of v that remains in each step, in (0, 1], so that what was noisy once is sent at last.
        squares: "gradient" or "observed".
        keep_error: keep in r what the rounding of the code lost, which the paper drops.

    Raises:
        ConfigError: a value is outside its range.

    Example:
        >>> VarianceMemory().buffers
        ('residual', 'variance', 'undo', 'sent')

    Source:
        Y. Tsuzuku, H. Imachi, T. Akiba, "Variance-based Gradient Compression for Efficient Distributed Deep Learning",
        ICLR 2018 workshop.
    """

    alpha: float = 1.0
    zeta: float = 0.999
    squares: Literal["gradient", "observed"] = "gradient"
    keep_error: bool = False

    name = "variance"
    late = True
    buffers = ("residual", "variance", "undo", "sent")
    transient = ("undo", "sent")
    squared = ("variance",)

    def __post_init__(self) -> None:
        require(is_float32(self.alpha) and self.alpha > 0, "VarianceMemory.alpha", "a finite number > 0", self.alpha)
        require(is_float32(self.zeta) and 0 < self.zeta <= 1, "VarianceMemory.zeta", "in (0, 1]", self.zeta)
        known = self.squares in ("gradient", "observed")
        require(known, "VarianceMemory.squares", "'gradient' or 'observed'", self.squares)
        require(isinstance(self.keep_error, bool), "VarianceMemory.keep_error", "True or False", self.keep_error)

    @staticmethod
    def observe(variance: Tensor, squares: Tensor) -> None:
        """Add the squared gradients of this step's samples; values that are not finite are left out, as no step can
        undo them.

        Args:
            variance: the kept float32 tensor, ``residuals.worker["variance"][parameter name]`` of the exchange, which
                makes it in the first step; without an observation all elements stand out.
            squares: sum over the samples of (gradient / B)^2, as many elements.
        """
        variance.add_(torch.nan_to_num(squares.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0))

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
        r, v, sent = kept["residual"], kept["variance"], kept["sent"]
        kept["undo"].copy_(v)
        if self.squares == "gradient":
            v.addcmul_(grad, grad)
        kernels.swap(grad.add_(r).view(-1), r.view(-1))
        for tensor in (r, v):
            kernels.nonfinite(tensor.view(-1), status)
        compressor.encode(self._clear(r, v, sent).mul_(scale), payload, state, key)
        compressor.add_decoded(payload, sent.zero_(), 1.0 / scale)
        went = sent != 0
        if self.keep_error:
            r.sub_(sent)
        else:
            r.masked_fill_(went, 0.0)
        v.mul_(self.zeta).masked_fill_(went, 0.0)

    def _clear(self, r: Tensor, v: Tensor, out: Tensor) -> Tensor:
        """Extract the elements that exceed their noise, and leave 0 elsewhere.

        Squares of small gradients vanish: without a variance all stand out.
        """
        torch.mul(r, r, out=out).sub_(v, alpha=self.alpha)
        ambiguous = (out <= 0) & (v != 0)
        return out.copy_(r).masked_fill_(ambiguous, 0.0)

    def rollback(self, grad: Tensor, kept: Mapping[str, Tensor]) -> None:
        kept["residual"].copy_(grad)
        kept["variance"].copy_(kept["undo"])

    def returned(self, grad: Tensor, kept: Mapping[str, Tensor], places: Tensor, values: Tensor) -> None:
        # A code of a fixed number of entries fills up with zeros, which say nothing of r there.
        places, values = places[values != 0], values[values != 0]
        variance = kept["undo"].view(-1)[places]
        if self.squares == "gradient":
            variance.add_((values - grad.view(-1)[places]).square_())
        kept["residual"].view(-1).index_add_(0, places, values)
        kept["variance"].view(-1)[places] = variance.mul_(self.zeta)
