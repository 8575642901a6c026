"""Deep gradient compression: the largest elements of an accumulated momentum."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.sparse.exact_topk import ExactTopK

__all__ = ["DGC"]


@dataclass(frozen=True)
class DGC(ExactTopK):
    """Send the k largest elements of the velocity that memory ``dgc`` accumulates; k = max(1, ceil(ratio n)).

    u = momentum u + g;  v = v + u;  C(v) = v on the k largest |v|, 0 elsewhere;  u = v = 0 where sent.

    The selection is exact where the paper takes a threshold from a sample of 1 %, so k elements are sent, no more and
    no fewer, of any tensor: one of zeros and one with fewer elements than 1 / ratio included.

    The optimizer must be SGD without momentum: the memory has it, also where a parameter travels dense. Weight decay
    that is to take part in the momentum must be added to the gradient before the exchange. Start with a higher ratio
    (``schedules.dgc_warmup``).

    Args:
        ratio: share of the elements that are sent, in (0, 1]. Lower: fewer bytes, and what is left out waits longer in
            the velocity.

    Raises:
        ConfigError: the ratio is outside (0, 1].

    Example:
        >>> import torch
        >>> code = DGC(ratio=0.4)
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]

    Source:
        Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
        for Distributed Training", ICLR 2018.
    """

    ratio: float = 0.001

    name = "dgc"
    family = "sparsification"
    reference = "Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, Deep Gradient Compression, ICLR 2018"
    memory = "dgc"
