"""A low-rank factorisation by one step of power iteration, averaged in two rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import MultiRound
from gradwire.compressors.lowrank.products import (
    add_factors,
    grouped,
    keep_usable_each,
    matrix_of,
    near_one_each,
    normal,
    orthonormal_each,
    solve_left,
    solve_right,
)
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["PowerSGD"]


@dataclass(frozen=True)
class PowerSGD(MultiRound):
    """Send two thin factors of each matrix; the next step starts from this step's factor.

    X of m rows and L columns, r = min(rank, m, L), "mean" over the ranks, Q kept from the step before:

        P = orthonormal(mean(X Q));  Q = mean(X^T P);  C(X) = P Q^T = P P^T mean(X)

    C is the orthogonal projection of the mean matrix onto r directions, so |C(X)| <= |mean(X)|. Its contraction
    constant depends on the data, so none is declared. The residual is X - P Q^T, with the averaged Q as in the paper's
    code ("global"), or with this rank's own Q = X^T P as in the authors' later library ("local"). What comes out is the
    same up to rounding, because both residuals have the same mean; but only the local one stays as small as what P
    leaves, where the global one also collects how this rank's gradients differ from those of the others.

    A tensor is a matrix of ``shape[0]`` rows. One with fewer than two dimensions does not pay, nor one that would
    shrink by less than ``min_compression``. A direction that the matrix lacks comes out as zero and keeps its
    warm start, so a gradient of zero is harmless.

    Ranks decode identical bits if they run the same build of torch on the same kind of device.

    Args:
        rank: rank of the approximation, >= 1. Lower: fewer bytes, more error left to the residual.
        min_compression: least factor of compression, >= 1; tensors that would not shrink by more than this travel
            dense.
        iterations: number of power iterations in one step, >= 1. More: a better projection for as many times the bytes
            and passes; the warm start gives nearly as much for nothing.
        error: "global" or "local": what is kept, see above. "local" takes room for one more Q, and no traffic. With a
            residual of 16 bits it is always "local": a large global one would lose what the ranks have in common.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = PowerSGD(rank=1)
        >>> x = torch.outer(torch.tensor([1.0, -2.0, 2.0]), torch.tensor([3.0, 0.0, 4.0, 0.0]))
        >>> torch.allclose(code.decompress(code.compress(x), x.shape), x)
        True

    Source:
        T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019.
    """

    rank: int = 2
    min_compression: float = 2.0
    iterations: int = 1
    error: Literal["global", "local"] = "global"

    name = "powersgd"
    family = "low rank"
    reference = "T. Vogels, S. P. Karimireddy, M. Jaggi, PowerSGD, NeurIPS 2019"
    rounds_only = ("own",)
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.rank, 1), "PowerSGD.rank", "an integer >= 1", self.rank)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, "PowerSGD.min_compression", "a finite number >= 1", self.min_compression)
        require(is_int(self.iterations, 1), "PowerSGD.iterations", "an integer >= 1", self.iterations)
        require(self.error in ("global", "local"), "PowerSGD.error", "'global' or 'local'", self.error)

    @property
    def rounds_needed(self) -> int:
        return 2 * self.iterations

    def pays_for(self, shape: Sequence[int]) -> bool:
        m, length, r = matrix_of(shape, self.rank)
        return len(shape) >= 2 and r * (m + length) * self.iterations * self.min_compression < m * length

    def layout(self, shape: Sequence[int]) -> Layout:
        m, length, r = matrix_of(shape, self.rank)
        factors = Field("p", torch.float32, r * m), Field("q", torch.float32, r * length)
        own = (Field("own", torch.float32, r * length),) if self.error == "local" else ()
        return Layout((*factors, *own))

    def traffic(self, shape: Sequence[int]) -> float:
        m, length, r = matrix_of(shape, self.rank)
        return 4.0 * r * (m + length) * self.iterations

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """Make the first Q, the same on every rank: independent elements of mean 0, variance 1 and nearly normal."""
        _, length, r = matrix_of(shape, self.rank)
        return {"q": normal(r * length, key.stream(common=True), device).view(r, length)}

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int]:
        items = [self._item(*each) for each in zip(xs, payloads, states, strict=True) if each[0].numel()]
        for iteration in range(self.iterations):
            if items:
                starts = near_one_each([item.q if iteration else item.warm for item in items])
                items = [item._replace(start=start) for item, start in zip(items, starts, strict=True)]
            alike = grouped(items, lambda item: item.q.shape[0])
            for group in alike:
                solve_left([item.x for item in group], [item.start for item in group], [item.p for item in group])
            yield 0
            orthonormal_each([item.p for item in items])
            for group in alike:
                solve_right([i.x for i in group], [i.p for i in group], [i.q for i in group])
            own = [(item.own, item.q) for item in items if item.own is not None]
            if own:
                torch._foreach_copy_([each for each, _ in own], [q for _, q in own])
            yield 1
        if items:
            keep_usable_each([item.q for item in items], [item.warm for item in items])

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self._add_each([payload], 1, [out], scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self._add_each([payload], -1, [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        self._add_each(payloads, 1, outs, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        self._add_each(payloads, -1, outs, scale)

    def _add_each(self, payloads: Sequence[Payload], right: int, outs: Sequence[Tensor], scale: float) -> None:
        add_factors([(payload[0], payload[right]) for payload in payloads], outs, self.rank, scale)

    def in_16_bits(self) -> PowerSGD:
        return replace(self, error="local")

    def _item(self, x: Tensor, payload: Payload, state: State) -> _Factored:
        m, length, r = matrix_of(x.shape, self.rank)
        p, q = payload[0].view(r, m), payload[1].view(r, length)
        own = payload[2].view(r, length) if self.error == "local" else None
        return _Factored(x.view(m, length), p, q, own, state["q"], state["q"])


class _Factored(NamedTuple):
    """One matrix in a step; factors lie in rows, on which a BLAS is several times faster than on thin columns."""

    x: Tensor
    """(m, L), the gradient itself."""
    p: Tensor
    """(r, m), a view into the payload."""
    q: Tensor
    """(r, L), a view into the payload."""
    own: Tensor | None
    """(r, L), a view into the payload: q before the mean, where the residual is to be local."""
    warm: Tensor
    """(r, L), from the state."""
    start: Tensor
    """(r, L), what X is multiplied by."""
