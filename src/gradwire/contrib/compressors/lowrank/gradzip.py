"""A low-rank factorisation by alternating ridge regression, averaged in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compressors.lowrank.products import copy_into, padded, similar_lengths
from gradwire.contrib.compressors.lowrank._alternating import Alternating
from gradwire.errors import is_float32, require

__all__ = ["GradZip"]


@dataclass(frozen=True)
class GradZip(Alternating):
    """Send one thin factor of each matrix, the ridge regression of the gradient on the other one.

    One half of a step of alternating least squares for each step of training, for min |X - P R|^2 / 2 with a ridge;
    "mean" over the ranks, r = min(rank, m, L), the rows of R (r, L) and the columns of P (m, r) of length 1 when held:

        even steps:  P = mean(X) R^T (R R^T + ridge I)^-1
        odd steps:   R = (P^T P + ridge I)^-1 P^T mean(X)
        C(X) = P R

    For a held factor the other is linear in X, so the mean of what the ranks find solves the problem of the mean. The
    ridge shrinks, |C(X)| < |mean(X)|, and keeps the system regular however alike the rows of a factor are; at length 1
    none of them is too short for it. Without it and with orthogonal rows this is
    ``acp_sgd``. The residual is what this rank's own factor leaves.

    Written after the description in the survey of H. Xu et al.; the paper itself was not at hand, and its ridge and
    its number of inner iterations may differ.

    Args:
        rank: rank of the approximation, >= 1. Lower: fewer bytes, more error left to the residual.
        ridge: weight of the ridge, in [1e-6, 1]. Larger: more shrinking, which is left to the residual.
        min_compression: least factor of compression, >= 1; tensors that would not shrink by more than this travel
            dense.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> from gradwire.vocabulary import Key
        >>> code = GradZip(rank=1, ridge=0.001)
        >>> x = torch.outer(torch.tensor([1.0, -2.0, 2.0]), torch.tensor([3.0, 0.0, 4.0, 0.0]))
        >>> state = code.init_state(x.shape, Key())
        >>> for step in range(2):
        ...     payload = code.compress(x, state, Key(step=step))
        >>> torch.allclose(code.decompress(payload, x.shape), x / 1.001)
        True

    Source:
        M. Cho, V. Muthusamy, B. Nemanich, R. Puri, "GradZip: Gradient Compression using Alternating Matrix
        Factorization for Large-scale Deep Learning", NeurIPS Workshop on Systems for ML 2019.
    """

    rank: int = 4
    ridge: float = 0.001
    min_compression: float = 2.0

    name = "gradzip"
    family = "low rank"
    reference = "M. Cho, V. Muthusamy, B. Nemanich, R. Puri, GradZip, NeurIPS Workshop on Systems for ML 2019"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(is_float32(self.ridge) and 1e-6 <= self.ridge <= 1, "GradZip.ridge", "in [1e-6, 1]", self.ridge)

    def prepare(self, held: Sequence[Tensor], sent: Sequence[Tensor], padding: int | None = None) -> Sequence[Tensor]:
        # The factors lie as they do in the payload, so that what is evenly spaced there is so here.
        whole = torch.empty(sum(each.numel() for each in sent), dtype=torch.float32, device=sent[0].device)
        parts = torch.split(whole, [each.numel() for each in sent])
        found = [part.view(each.shape) for part, each in zip(parts, sent, strict=True)]
        for group in similar_lengths(held, padding):
            # Only the product of the factors counts, so the rows of the held one may have any length.
            rows = padded([held[i] for i in group]).double()
            rows = torch.nn.functional.normalize(rows, dim=-1, eps=torch.finfo(torch.float32).tiny)
            gram = rows @ rows.mT
            gram.diagonal(dim1=1, dim2=2).add_(self.ridge)
            lower = torch.linalg.cholesky_ex(gram).L
            copy_into([sent[i] for i in group], rows.float())
            solved = torch.cholesky_solve(rows, lower).to(torch.float32, memory_format=torch.contiguous_format)
            copy_into([found[i] for i in group], solved)
        return found
