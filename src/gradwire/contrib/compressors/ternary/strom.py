"""Fixed threshold with a residual, sent as its inventor did: only the elements beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradwire.compressors.ternary.streams import TernaryCode
from gradwire.errors import require

__all__ = ["Strom"]


@dataclass(frozen=True)
class Strom(TernaryCode):
    """Send +t or -t for the elements beyond a threshold, with their indices, and keep the rest.

    r = residual + g;  r > t: +t, residual = r - t;  r < -t: -t, residual = r + t;  else nothing is sent.

    The payload is of variable size. Where more than about a fifth of the elements fire it goes over to a bitmap and
    then to 2 bits an element, so it is never more than a byte larger than that of ``twobit``.

    Args:
        threshold: t > 0, in the gradient's unit. A residual drains by at most t a step: too small a threshold and
            large gradients queue up and everything fires, too large and small ones wait long. "auto": as for
            ``twobit``; it keeps the share that fires, and so the bytes, near ``target``.
        coding: "gaps": Golomb-Rice codes, 8 bits and a sign each where 1 % fire. "words": the paper's 32 bits, simple
            to read: twice the index, plus 1 where it is +t.
        target: share of the elements that fire in a step with "auto", in (0, 0.5]: what is sent grows with it.

    Raises:
        ConfigError: the threshold is neither a positive finite number in float32 nor "auto", the coding is neither of
            these, or a target out of range.

    Example:
        >>> import torch
        >>> code = Strom(threshold=1.0)
        >>> code.decompress(code.compress(torch.tensor([0.5, -1.2, 2.7, 1.0])), (4,)).tolist()
        [0.0, -1.0, 1.0, 0.0]

    Source:
        N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", INTERSPEECH 2015.
    """

    threshold: float | Literal["auto"] = 0.01
    coding: Literal["gaps", "words"] = "gaps"
    target: float = 0.02

    name = "strom"
    family = "hybrid"
    reference = "N. Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, INTERSPEECH 2015"
    fixed_size = False
    strict = True

    @property
    def words(self) -> bool:
        return self.coding == "words"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.coding in ("gaps", "words"), "Strom.coding", "'gaps' or 'words'", self.coding)
