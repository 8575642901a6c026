"""Base of the methods that send one thin factor of each matrix a step, the left and the right one in turn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.compressors.base import MultiRound
from gradwire.compressors.lowrank import ops
from gradwire.compressors.lowrank.products import (
    add_factors,
    grouped,
    keep_usable,
    keep_usable_each,
    matrix_of,
    normal,
    solve_left,
    solve_right,
    thin,
)
from gradwire.errors import is_float32, is_int, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Alternating"]


class Alternating(MultiRound):
    """Approximation of X by P^T Q with P of (r, m) and Q of (r, L): each step holds one factor and solves for the
    other.

    The held factor comes from the state, so it is the same on all ranks, and the other is linear in X: the mean of what
    the ranks find is what they would find for the mean matrix. In even steps Q is held, in odd ones P.

    ``own_p`` and ``own_q`` are this rank's factors before the mean; they stay where they are.
    """

    alignment = 0
    feedback = "required"

    rank: int
    min_compression: float

    rounds_only = ("own_p", "own_q")

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(is_int(self.rank, 1), f"{name}.rank", "an integer >= 1", self.rank)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, f"{name}.min_compression", "a finite number >= 1", self.min_compression)

    def pays_for(self, shape: Sequence[int]) -> bool:
        m, length, _ = matrix_of(shape, self.rank)
        return len(shape) >= 2 and self.traffic(shape) * self.min_compression < 4 * m * length

    def layout(self, shape: Sequence[int]) -> Layout:
        m, length, r = matrix_of(shape, self.rank)
        names = (("p", m), ("q", length), ("own_p", m), ("own_q", length))
        return Layout(tuple(Field(name, torch.float32, r * size) for name, size in names))

    def traffic(self, shape: Sequence[int]) -> float:
        m, length, r = matrix_of(shape, self.rank)
        return 4 * r * (m + length) / 2

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        """The first factors, the same on every rank: independent elements of mean 0, variance 1 and nearly normal."""
        m, length, r = matrix_of(shape, self.rank)
        both = normal(r * (m + length), key.stream(common=True), device)
        return {"p": both[: r * m].view(r, m), "q": both[r * m :].view(r, length)}

    def rounds(
        self, xs: Sequence[Tensor], payloads: Sequence[Payload], states: Sequence[State], keys: Sequence[Key]
    ) -> Iterator[int]:
        solved = keys[0].step % 2 if keys else 0
        held = 1 - solved
        items = [
            self._item(x, payload, state) for x, payload, state in zip(xs, payloads, states, strict=True) if x.numel()
        ]
        if not items:
            yield solved
            return
        factors = self.prepare([item.warm[held] for item in items], [item.sent[held] for item in items])
        solve = solve_right if solved else solve_left
        for group in grouped(range(len(items)), lambda i: items[i].sent[held].shape[0]):
            solve([items[i].x for i in group], [factors[i] for i in group], [items[i].sent[solved] for i in group])
        torch._foreach_copy_(
            [own for item in items for own in item.own], [sent for item in items for sent in item.sent]
        )
        yield solved
        keep_usable_each([item.sent[solved] for item in items], [item.warm[solved] for item in items])

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        """Encode as the base does, in two passes over memory: the first product is computed while the sum is formed."""
        _, _, r = matrix_of(residual.shape, self.rank)
        if not thin(residual, r):
            super().encode_feedback(grad, residual, payload, state, key, status)
            return
        item, solved = self._item(residual, payload, state), key.step % 2
        (factors,) = self.prepare([item.warm[1 - solved]], [item.sent[1 - solved]])
        solve = ops.lowrank_right_feedback if solved else ops.lowrank_left_feedback
        x, found = residual.view(-1), item.sent[solved]
        solve(grad.view(-1), x, factors.reshape(-1), found.view(-1), r, status)
        torch._foreach_copy_(list(item.own), list(item.sent))
        keep_usable(found, item.warm[solved])
        ops.lowrank_add_decoded(payload[0], payload[1], x, r, -1.0, status)

    @abstractmethod
    def prepare(self, held: Sequence[Tensor], sent: Sequence[Tensor], padding: int | None = None) -> Sequence[Tensor]:
        """Prepare the held factors, (r, a) of any shapes, before the others are solved for.

        Args:
            held: factors, not changed.
            sent: tensors of the same shapes, to which the factors are written as they are sent.
            padding: most zeros behind shorter rows that are worked on in one call, as for ``orthonormal_each``.

        Returns:
            Factors by which each X is multiplied to get the other one, of the same shapes.
        """

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_decoded_each([payload], [out], scale)

    def add_own(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.add_own_each([payload], [out], scale)

    def add_decoded_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        add_factors([(p, q) for p, q, *_ in payloads], outs, self.rank, scale)

    def add_own_each(self, payloads: Sequence[Payload], outs: Sequence[Tensor], scale: float = 1.0) -> None:
        add_factors([(p, q) for *_, p, q in payloads], outs, self.rank, scale)

    def _item(self, x: Tensor, payload: Payload, state: State) -> _Halved:
        m, length, r = matrix_of(x.shape, self.rank)
        p, q, own_p, own_q = (field.view(r, -1) for field in payload)
        return _Halved(x.view(m, length), (p, q), (own_p, own_q), (state["p"], state["q"]))


class _Halved(NamedTuple):
    """One matrix in a step; each pair holds one of (r, m) and one of (r, L)."""

    x: Tensor
    """(m, L), the gradient itself."""
    sent: tuple[Tensor, Tensor]
    """Views into the payload: what becomes the mean."""
    own: tuple[Tensor, Tensor]
    """Views into the payload: what this rank found."""
    warm: tuple[Tensor, Tensor]
    """The warm start, from the state."""
