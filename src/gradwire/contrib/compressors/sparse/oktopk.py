"""Top-k for a strategy that agrees on the largest elements of the sum."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.compressors.sparse.exact_topk import ExactTopK

__all__ = ["OkTopk"]


@dataclass(frozen=True)
class OkTopk(ExactTopK):
    """Send the k = max(1, ceil(ratio n)) largest elements; strategy ``oktopk`` returns the k largest of their sum.

    C(x) = x on the k largest |x|, 0 elsewhere:  |C(x) - x|^2 <= (1 - k/n) |x|^2 for every x.

    The payload is that of top-k, and any strategy carries it. With ``strategy="oktopk"`` ranks exchange entries by
    index range, and only about k of the sum come back, so that traffic does not grow with the number of workers.

    Args:
        ratio: share of the elements that are sent, in (0, 1]; 0.01 to 0.02 in the paper.

    Raises:
        ConfigError: the ratio is outside (0, 1].

    Example:
        >>> import torch
        >>> code = OkTopk(ratio=0.4)
        >>> code.decompress(code.compress(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0])), (5,)).tolist()
        [0.0, -5.0, 0.0, 0.0, 4.0]

    Source:
        S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022.
    """

    ratio: float = 0.01

    name = "oktopk"
    family = "sparsification"
    reference = "S. Li, T. Hoefler, Near-Optimal Sparse Allreduce, PPoPP 2022"
