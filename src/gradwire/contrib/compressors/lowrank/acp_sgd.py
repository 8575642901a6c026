"""Low-rank factorisation by half a step of power iteration, averaged in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.compressors.lowrank.products import orthonormal_each
from gradwire.contrib.compressors.lowrank._alternating import Alternating

__all__ = ["ACPSGD"]


@dataclass(frozen=True)
class ACPSGD(Alternating):
    """Send one thin factor of each matrix: this step the left one, the next step the right one.

    X of m rows and L columns, r = min(rank, m, L), "mean" over the ranks, factors kept from the steps before:

        even steps:  Q = orthonormal(Q);  P = mean(X Q);    C(X) = P Q^T = mean(X) Q Q^T
        odd steps:   P = orthonormal(P);  Q = mean(X^T P);  C(X) = P Q^T = P P^T mean(X)

    C is an orthogonal projection of the mean matrix, so |C(X)| <= |mean(X)|, onto directions that two steps together
    improve as one of ``powersgd`` does. It sends half the bytes of ``powersgd`` at the same rank in one all-reduce, and
    nothing waits for a second one. The residual is what this rank's own factor leaves of its own matrix.

    A tensor is a matrix of ``shape[0]`` rows. One with fewer than two dimensions does not pay, nor one that would
    shrink by less than ``min_compression``. A direction that the matrix lacks comes out as zero and keeps its warm
    start, so a gradient of zero is harmless.

    Ranks decode identical bits if they run the same build of torch on the same kind of device.

    Args:
        rank: rank of the approximation, >= 1. Lower: fewer bytes, more error left to the residual.
        min_compression: least factor of compression, >= 1; tensors that would not shrink by more than this travel
            dense.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> import torch
        >>> from gradwire.vocabulary import Key
        >>> code = ACPSGD(rank=1)
        >>> x = torch.outer(torch.tensor([1.0, -2.0, 2.0]), torch.tensor([3.0, 0.0, 4.0, 0.0]))
        >>> state = code.init_state(x.shape, Key())
        >>> code.compress(x, state, Key(step=0)).numel()
        56
        >>> torch.allclose(code.decompress(code.compress(x, state, Key(step=1)), x.shape), x)
        True

    Source:
        L. Zhang, L. Zhang, S. Shi, X. Chu, B. Li, "Evaluation and Optimization of Gradient Compression for Distributed
        Deep Learning", ICDCS 2023.
    """

    rank: int = 4
    min_compression: float = 2.0

    name = "acp_sgd"
    family = "low rank"
    reference = "L. Zhang, L. Zhang, S. Shi, X. Chu, B. Li, ACP-SGD, ICDCS 2023"

    def prepare(self, held: Sequence[Tensor], sent: Sequence[Tensor], padding: int | None = None) -> Sequence[Tensor]:
        orthonormal_each(held, sent, padding)
        return sent
