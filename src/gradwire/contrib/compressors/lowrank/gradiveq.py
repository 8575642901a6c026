"""Slices of the gradient in the basis of their principal components, which the ranks learn from common gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import MultiRound
from gradwire.compressors.lowrank.products import (
    add_multiplied,
    batch_of,
    evenly_spaced,
    grouped,
    keep_usable,
    multiply,
    normal,
    orthonormal,
)
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

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
        >>> from gradwire.vocabulary import Key
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
    feedback = "required"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_int(self.size, 2, 4096), "GradiVeQ.size", "an integer in [2, 4096]", self.size)
        ok = is_int(self.components, 1, self.size)
        require(ok, "GradiVeQ.components", f"an integer in [1, {self.size}]", self.components)
        require(is_int(self.sampled, 1), "GradiVeQ.sampled", "an integer >= 1", self.sampled)
        ok = is_int(self.period, self.sampled + 1)
        require(ok, "GradiVeQ.period", f"an integer > sampled = {self.sampled}", self.period)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, "GradiVeQ.min_compression", "a finite number >= 1", self.min_compression)

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
        return {"basis": orthonormal(basis)[0], "moment": torch.zeros(width, width, dtype=torch.float32, device=device)}

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int]:
        items = [_Sliced(x, *p, **s) for x, p, s in zip(xs, payloads, states, strict=True) if x.numel()]
        index = (keys[0].step - 1) % self.period if keys else 0
        dense = [item.dense for item in items]
        if index >= self.sampled:
            _zero(dense)
            _copy([item.sent for item in items], [item.basis.view(-1) for item in items])
            slices, directions, rows = _blocks([(item.x, item.y, item.basis) for item in items])
            multiply(slices, [each.mT for each in directions], rows)
            yield 1
            return
        _copy(dense, [item.x.view(-1) for item in items])
        _zero([field for item in items for field in (item.y, item.sent)])
        yield 0
        if index == 0 and self.sampled > 1:
            _zero([item.moment for item in items])
        else:
            yield from _refresh(items, leads=all(key.rank == 0 for key in keys))

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_each([payload], [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        full = [(payload, out) for payload, out in zip(payloads, outs, strict=True) if out.numel()]
        if not full:
            return
        torch._foreach_add_([out.view(-1) for _, out in full], [dense for (dense, _, _), _ in full], alpha=scale)
        extents = [self._extent(out.numel()) for _, out in full]
        bases = [basis.view(d, width) for ((_, _, basis), _), (width, d) in zip(full, extents, strict=True)]
        slices, directions, rows = _blocks(
            [(out, y, basis) for ((_, y, _), out), basis in zip(full, bases, strict=True)]
        )
        add_multiplied(slices, rows, directions, scale)

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


def _zero(tensors: Sequence[Tensor]) -> None:
    if tensors:
        torch._foreach_zero_(list(tensors))


def _copy(outs: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    if outs:
        torch._foreach_copy_(list(outs), list(tensors))


def _refresh(items: Sequence[_Sliced], *, leads: bool) -> Iterator[int]:
    """Learn the bases from the common gradients in ``dense``, and take them from the leading rank."""
    groups = grouped(items, lambda item: tuple(item.basis.shape))
    moments = [torch.stack([item.moment for item in group]) + _moments(group) for group in groups]
    found = [
        _leading(each, torch.stack([item.basis for item in group])) for each, group in zip(moments, groups, strict=True)
    ]
    if leads:
        for group, bases in zip(groups, found, strict=True):
            _copy([item.sent for item in group], list(bases.view(len(group), -1).unbind()))
    yield 2
    for group, bases, sums in zip(groups, found, moments, strict=True):
        keep_usable(torch.stack([item.sent for item in group]).view_as(bases), bases)
        _copy([item.basis for item in group], list(bases.unbind()))
        _copy([item.moment for item in group], list(sums.unbind()))


def _blocks(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Cut tensors into slices: of each first the whole ones, then a short one, if there is one.

    Args:
        parts: tensors of any shape, their y, flat, and their bases, (d, K).

    Returns:
        Matrices of slices, the directions that belong to them, and their rows of y.
    """
    slices, directions, rows = [], [], []
    for x, y, basis in parts:
        flat, (d, width) = x.view(-1), basis.shape
        whole, own = flat.numel() // width, y.view(-1, d)
        slices.append(flat[: whole * width].view(whole, width))
        directions.append(basis)
        rows.append(own[:whole])
        if whole * width < flat.numel():
            rest = flat[whole * width :].view(1, -1)
            slices.append(rest)
            directions.append(basis[:, : rest.numel()])
            rows.append(own[whole:])
    return slices, directions, rows


def _moments(items: Sequence[_Sliced]) -> Tensor:
    """The sums of s s^T over the whole slices of gradients scaled to norm 1, for items of one K: (items, K, K)."""
    width = items[0].basis.shape[1]
    slices = [item.dense[: item.dense.numel() // width * width].view(-1, width) for item in items]
    runs = list(evenly_spaced(slices))
    order, sizes = [i for run in runs for i in run], list(map(len, runs))
    peaks = torch.stack(torch._foreach_norm([slices[i] for i in order], math.inf))
    peaks.clamp_min_(torch.finfo(torch.float32).tiny)
    products = torch.empty(len(items), width, width, dtype=torch.float32, device=peaks.device)
    for run, own, out in zip(runs, torch.split(peaks, sizes), torch.split(products, sizes), strict=True):
        scaled = batch_of(slices, run) / own.view(-1, 1, 1)
        torch.bmm(scaled.mT, scaled, out=out)
    # The trace is the square of the norm.
    products /= products.diagonal(dim1=1, dim2=2).sum(1).clamp_min_(1.0).view(-1, 1, 1)
    places = sorted(range(len(items)), key=order.__getitem__)
    return products if order == sorted(order) else torch.stack([products[place] for place in places])


def _leading(moments: Tensor, before: Tensor) -> Tensor:
    """The leading eigenvectors of each moment, in rows; arbitrary ones of one that is not finite, whose step will not
    count. Where none are found the bases stay as they were ``before``.
    """
    try:
        vectors: Tensor = torch.linalg.eigh(moments.double().nan_to_num_(0.0, 0.0, 0.0)).eigenvectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # now and then LAPACK does not converge
        return before
    return vectors.mT.flip(1)[:, : before.shape[1]].float().contiguous()
