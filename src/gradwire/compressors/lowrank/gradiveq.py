"""Slices of the gradient in the basis of their principal components, which the ranks learn from common gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import Feedback, MultiRound
from gradwire.compressors.lowrank._products import keep_usable, normal, orthonormal
from gradwire.errors import is_float32, is_int, require
from gradwire.types import Field, Key, Layout, Payload, State

__all__ = ["GradiVeQ"]


@dataclass(frozen=True)
class GradiVeQ(MultiRound):
    """Cut the gradient into slices, and send each slice's coordinates along a few directions that all share.

    For a slice s of K elements, "mean" over the ranks and U of K x d with orthonormal columns, the same on all ranks:

        y = mean(U^T s);  C(s) = U y = U U^T mean(s)

    U are the d leading eigenvectors of sum s s^T over the slices of the mean gradients of the first ``sampled`` steps
    of each period, which travel dense; each gradient has weight 1. With more than one of them the first is left out of
    the sum, because it brings what the residual held. Rank 0's U is taken by all, for two machines may give an
    eigenvector different signs. Until it is known U is random.

    C is an orthogonal projection of the mean and linear, so an all-reduce carries it. What lies across U stays in the
    residual until the next period begins. Tensors of fewer than K^2 elements do not pay. The paper subtracts a mean
    slice first; here it is one of the directions. On an accelerator the sampled steps wait for the device, as every
    eigendecomposition of torch does; the others do not.

    Args:
        size: K, elements of a slice, 2 to 4096. Larger: more to find in common, K^2 floats kept and K^3 time a refresh.
        components: d, in [1, size]. Fewer: fewer bytes, more left to the residual.
        period: steps from one refresh to the next, > sampled. Step 1 begins the first one.
        sampled: >= 1, how many steps of a period travel dense. More: a steadier basis, more bytes.
        min_compression: least factor of compression, >= 1; tensors that would not shrink by more than this on average
            travel dense.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> from gradwire.types import Key
        >>> code = GradiVeQ(size=4, components=1, sampled=1)
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, -2.0, -4.0, -6.0, -8.0])
        >>> state = code.init_state(x.shape, Key())
        >>> _ = code.compress(x, state, Key(step=1))
        >>> torch.allclose(code.decompress(code.compress(3 * x, state, Key(step=2)), x.shape), 3 * x)
        True

    Source:
        M. Yu et al., "GradiVeQ: Vector Quantization for Bandwidth-Efficient Gradient Aggregation in Distributed CNN
        Training", NeurIPS 2018.
    """

    size: int = 256
    components: int = 16
    period: int = 500
    sampled: int = 5
    min_compression: float = 2.0

    name = "gradiveq"
    family = "low rank"
    reference = "M. Yu et al., GradiVeQ, NeurIPS 2018"
    reductions = ("mean", "mean", "sum")

    def __post_init__(self) -> None:
        require(is_int(self.size, 2, 4096), "GradiVeQ.size", "an integer in [2, 4096]", self.size)
        ok = is_int(self.components, 1, self.size)
        require(ok, "GradiVeQ.components", f"an integer in [1, {self.size}]", self.components)
        require(is_int(self.sampled, 1), "GradiVeQ.sampled", "an integer >= 1", self.sampled)
        ok = is_int(self.period, self.sampled + 1)
        require(ok, "GradiVeQ.period", f"an integer > sampled = {self.sampled}", self.period)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, "GradiVeQ.min_compression", "a finite number >= 1", self.min_compression)

    @property
    def feedback(self) -> Feedback:
        return "required"

    @property
    def alignment(self) -> int:
        return 0

    def pays_for(self, shape: Sequence[int]) -> bool:
        n = math.prod(shape)
        return n >= self.size**2 and self.traffic(shape) * self.min_compression < 4 * n

    def traffic(self, shape: Sequence[int]) -> float:
        dense, y, basis = (field.nbytes for field in self.layout(shape).fields)
        return (self.sampled * (dense + basis) + (self.period - self.sampled) * y) / self.period

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout: ``dense`` is zero except in sampled steps, and y is zero in those."""
        n = math.prod(shape)
        width, d = self._extent(n)
        slices = -(-n // width) if n else 0
        fields = (("dense", n), ("y", slices * d), ("basis", d * width))
        return Layout(tuple(Field(name, torch.float32, count) for name, count in fields))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """Make a random basis in rows, the same on every rank, and the sum of the outer products of slices."""
        n = math.prod(shape)
        if n == 0:
            return {}
        width, d = self._extent(n)
        basis = normal(d * width, key.stream(common=True), device).view(1, d, width)
        return {"basis": orthonormal(basis)[0], "moment": torch.zeros(width, width, device=device)}

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int]:
        items = [_Sliced(x, *p, **s) for x, p, s in zip(xs, payloads, states, strict=True) if x.numel()]
        index = (keys[0].step - 1) % self.period if keys else 0
        if index >= self.sampled:
            for item in items:
                item.project()
            yield 1
            return
        for item in items:
            item.dense.copy_(item.x.view(-1))
            item.y.zero_()
            item.sent.zero_()
        yield 0
        if index == 0 and self.sampled > 1:
            for item in items:
                item.moment.zero_()
        else:
            yield from _refresh(items, leads=all(key.rank == 0 for key in keys))

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        if out.numel() == 0:
            return
        dense, y, basis = payload
        out.view(-1).add_(dense, alpha=scale)
        width, d = self._extent(out.numel())
        for slices, directions, rows in _blocks(out, y, basis.view(d, width)):
            slices.addmm_(rows, directions, alpha=scale)

    def _extent(self, n: int) -> tuple[int, int]:
        """The sizes K and d, limited by a tensor of n elements."""
        width = min(self.size, n)
        return width, min(self.components, width)


class _Sliced(NamedTuple):
    """One tensor in a step, the fields of its payload, and its state."""

    x: Tensor
    dense: Tensor
    y: Tensor
    sent: Tensor
    """The basis in the payload, flat."""
    basis: Tensor
    """(d, K), from the state."""
    moment: Tensor
    """(K, K), from the state."""

    def project(self) -> None:
        """Fill the payload of a step that is not sampled."""
        self.dense.zero_()
        self.sent.copy_(self.basis.view(-1))
        for slices, directions, rows in _blocks(self.x, self.y, self.basis):
            torch.mm(slices, directions.mT, out=rows)


def _refresh(items: Sequence[_Sliced], *, leads: bool) -> Iterator[int]:
    """Learn the basis from the common gradients in ``dense``, and take it from the leading rank."""
    moments = [item.moment + _moment(item.dense, item.basis) for item in items]
    found = [_leading(moment, item.basis.shape[0]) for moment, item in zip(moments, items, strict=True)]
    for item, basis in zip(items, found, strict=True):
        if leads:
            item.sent.copy_(basis.view(-1))
    yield 2
    for item, basis, moment in zip(items, found, moments, strict=True):
        keep_usable(item.sent.view_as(basis), basis)
        item.basis.copy_(basis)
        item.moment.copy_(moment)


def _blocks(x: Tensor, y: Tensor, basis: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The slices, the part of the basis that they need, and their rows of y: first the whole
    slices, then a short one.
    """
    flat, (d, width) = x.view(-1), basis.shape
    whole = flat.numel() // width
    rest, rows = flat[whole * width :].view(1, -1), y.view(-1, d)
    yield flat[: whole * width].view(whole, width), basis, rows[:whole]
    if rest.numel():
        yield rest, basis[:, : rest.numel()], rows[whole:]


def _moment(dense: Tensor, basis: Tensor) -> Tensor:
    """The sum of s s^T over the whole slices of a gradient scaled to norm 1."""
    width = basis.shape[1]
    slices = dense[: dense.numel() // width * width].view(-1, width)
    scaled = slices / slices.abs().amax().clamp_min_(torch.finfo(torch.float32).tiny)
    return scaled.mT @ scaled / scaled.square().sum().clamp_min_(1.0)


def _leading(moment: Tensor, count: int) -> Tensor:
    """The leading eigenvectors, in rows; arbitrary ones for a moment that is not finite, whose step will not count."""
    vectors: Tensor = torch.linalg.eigh(moment.double().nan_to_num_(0.0, 0.0, 0.0)).eigenvectors
    return vectors.mT.flip(0)[:count].float().contiguous()
