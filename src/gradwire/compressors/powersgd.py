"""A low-rank factorisation by one step of power iteration, averaged in two rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors._lowrank import add_product, multiply, normal, orthonormalise
from gradwire.compressors.base import Feedback, MultiRound
from gradwire.errors import is_float32, is_int, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["PowerSGD"]


@dataclass(frozen=True)
class PowerSGD(MultiRound):
    """Send two thin factors of each matrix; the next step starts from this step's factor.

    X of m rows and L columns, r = min(rank, m, L), "mean" over the ranks, Q kept from the step before:

        P = orthonormal(mean(X Q));  Q = mean(X^T P);  C(X) = P Q^T = P P^T mean(X)

    C is the orthogonal projection of the mean matrix onto r directions, so |C(X)| <= |mean(X)|. Its contraction
    constant depends on the data, so none is declared. The residual is x - P Q^T with the averaged factors, as in the
    paper's code, so a rank also keeps how it differs from the mean.

    A tensor is a matrix of ``shape[0]`` rows. One with fewer than two dimensions does not pay, nor one that would
    shrink by less than ``min_compression``. A direction that the matrix lacks comes out as zero and keeps its
    warm start, so a gradient of zero is harmless.

    Ranks decode identical bits if they run the same build of torch on the same kind of device.

    Args:
        rank: of the approximation, at least 1. Lower: fewer bytes, more error left to the residual.
        min_compression: at least 1; tensors that would not shrink by more than this travel dense.

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

    name = "powersgd"
    reference = "T. Vogels, S. P. Karimireddy, M. Jaggi, PowerSGD, NeurIPS 2019"
    rounds_needed = 2

    def __post_init__(self) -> None:
        require(is_int(self.rank, 1), "PowerSGD.rank", "an integer >= 1", self.rank)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, "PowerSGD.min_compression", "a finite number >= 1", self.min_compression)

    @property
    def feedback(self) -> Feedback:
        return "required"

    @property
    def alignment(self) -> int:
        return 0

    def pays_for(self, shape: Sequence[int]) -> bool:
        m, length, r = self._factors(shape)
        return len(shape) >= 2 and r * (m + length) * self.min_compression < m * length

    def layout(self, shape: Sequence[int]) -> Layout:
        m, length, r = self._factors(shape)
        return Layout((Field("p", torch.float32, r * m), Field("q", torch.float32, r * length)))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """The first Q, the same on every rank: independent elements of mean 0, variance 1 and nearly normal."""
        _, length, r = self._factors(shape)
        return {"q": normal(r * length, key.stream(common=True), device).view(r, length)}

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[None]:
        items = [self._item(*each) for each in zip(xs, payloads, states, strict=True) if each[0].numel()]
        alike = _grouped(items, lambda item: item.x.shape)
        for group in alike:
            multiply([i.warm for i in group], [i.x.mT for i in group], [i.p for i in group])
        yield
        for group in _grouped(items, lambda item: item.p.shape):
            orthonormalise([i.p for i in group])
        for group in alike:
            multiply([i.p for i in group], [i.x for i in group], [i.q for i in group])
        yield
        for item in items:
            _keep_usable(item.q, item.warm)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        m, length, r = self._factors(out.shape)
        if r == 0:
            return
        p, q = payload[0].view(r, m), payload[1].view(r, length)
        add_product(out.view(m, length), p, q, scale)

    def _factors(self, shape: Sequence[int]) -> tuple[int, int, int]:
        m, length = (shape[0] if shape else 1), math.prod(shape[1:])
        return m, length, min(self.rank, m, length)

    def _item(self, x: Tensor, payload: Payload, state: State) -> _Item:
        m, length, r = self._factors(x.shape)
        return _Item(x.view(m, length), payload[0].view(r, m), payload[1].view(r, length), state["q"])


class _Item(NamedTuple):
    """One matrix on its way; factors lie in rows, on which a BLAS is several times faster than on thin columns."""

    x: Tensor
    """(m, L), the gradient itself."""
    p: Tensor
    """(r, m), a view into the payload."""
    q: Tensor
    """(r, L), a view into the payload."""
    warm: Tensor
    """(r, L), from the state."""


def _grouped(items: Iterable[_Item], shape: Callable[[_Item], torch.Size]) -> list[list[_Item]]:
    groups: dict[torch.Size, list[_Item]] = {}
    for item in items:
        groups.setdefault(shape(item), []).append(item)
    return list(groups.values())


def _keep_usable(q: Tensor, warm: Tensor) -> None:
    """Warm-start from ``q``, except its rows that are zero or not finite: from those no later step could recover."""
    peak = q.abs().amax(1, keepdim=True)
    torch.where((peak > 0) & peak.isfinite(), q, warm, out=warm)
