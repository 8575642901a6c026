"""MXNet's 2-bit code, bit for bit, and the same with a threshold that follows the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.compressors.ternary.streams import TernaryCode
from gradwire.errors import require

__all__ = ["TwoBit"]


@dataclass(frozen=True)
class TwoBit(TernaryCode):
    """Send +t, 0 or -t for each element and keep the rest: 2 bits an element.

    r = residual + g;  r >= t: code 11, residual = r - t;  r <= -t: code 10, residual = r + t;  else code 00.

    With threshold="auto" element i compares with l d_i in place of t, and t travels in the payload. l = max(q, t / 2),
    q such that the share ``target`` fires, from a sample of the |r_i| / d_i; t is the mean over the ranks of a running
    mean of their q; d_i = 1 + frac(0.618... i), so that equal elements do not fire together.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up, too large and small ones wait long. The default suits MXNet's convention, where
            gradients are sums over a batch; for mean losses use 1e-3 to 1e-2. "auto": nobody need know the unit; each
            tensor has its own t, 4 bytes of it travel, and choosing it takes 30 to 80 us a tensor and step.
        wire: "dense": 2 bits an element, MXNet's bytes. "adaptive": of variable size, the 2 bits, a bitmap with signs
            or coded gaps with signs, whichever is smallest in this step: 0.09 bits an element where 1 % of them fire,
            and never more than a byte over the dense form.
        target: share of the elements that fire in a step with "auto", in (0, 0.5]. Lower: larger t, later and coarser,
            but fewer bytes with the adaptive wire. Without "auto" it has no effect.

    Raises:
        ConfigError: the threshold is neither a positive finite number in float32 nor "auto", the wire is neither of
            these, or a target out of range.

    Example:
        >>> import torch
        >>> code = TwoBit(threshold=0.5)
        >>> code.layout((17,)).nbytes
        8
        >>> code.decompress(code.compress(torch.tensor([0.6, -0.5, 0.1])), (3,)).tolist()
        [0.5, -0.5, 0.0]
        >>> code = TwoBit(threshold="auto", target=0.25)
        >>> code.decompress(code.compress(torch.tensor([8e-6, 1e-6, -2e-6, 3e-6])), (4,)).gt(7e-6).tolist()
        [True, False, False, False]

    Source:
        Apache MXNet, "Gradient Compression" (pull request 8662, 2017), after N. Strom, "Scalable Distributed DNN
        Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float | Literal["auto"] = 0.5
    wire: Literal["dense", "adaptive"] = "dense"
    target: float = 0.1

    name = "twobit"
    reference = "Apache MXNet gradient compression, 2017; N. Strom, INTERSPEECH 2015"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.wire in ("dense", "adaptive"), "TwoBit.wire", "'dense' or 'adaptive'", self.wire)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        """Return whether the payload has a fixed size, as the dense wire has."""
        return self.wire == "dense"

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded, as with the dense wire."""
        return self.wire == "dense"
