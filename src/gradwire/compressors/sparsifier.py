"""Base of the sparsifiers, whose payload consists of values and indices.

    select(x, values, places)          values[j] = x[place j]
    scatter(values, places, out, s)    out[place j] += s * values[j]

The number of values follows from the shape, so another compressor may encode them. Whatever is done to the values, the
residual is exact: it is 0 where an element was sent, plus what its value lost.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.decoders import ManyDecoder, rows_of
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Sparsifier", "arranged", "ordered"]


def arranged(fields: Sequence[Field]) -> list[int]:
    """The order in which fields travel, larger items first, so that no byte lies unused between two of them.

    >>> arranged([Field("codes", torch.uint8, 3), Field("counts", torch.int32, 1)])
    [1, 0]
    """
    return sorted(range(len(fields)), key=lambda i: -fields[i].dtype.itemsize)


def ordered(payload: Payload, order: Sequence[int]) -> Payload:
    """The fields of an ``arranged`` payload, in their own order."""
    return tuple(payload[order.index(own)] for own in range(len(order)))


class Sparsifier(ManyDecoder):
    """Base of the methods that send some of the elements; it works on flat tensors."""

    @property
    def value_type(self) -> torch.dtype:
        """The dtype in which a value travels."""
        return torch.float32

    @property
    def exact(self) -> bool:
        """Return whether a value before rounding is the element itself, and not a multiple of it."""
        return True

    @abstractmethod
    def slots(self, n: int) -> int:
        """The number of values sent of ``n`` elements."""

    @abstractmethod
    def places(self, n: int) -> tuple[Field, ...]:
        """The fields that hold the indices of the values."""

    @abstractmethod
    def select(self, x: Tensor, values: Tensor, places: Payload, key: Key, scale: float = 1.0) -> None:
        """Write the indices, and ``scale`` times the values there.

        Args:
            x: float32, (n,).
            values: float32, (slots(n),).
            places: empty fields of the form ``places(n)``, in which the indices are written.
            key: key of the random stream.
            scale: multiplies the elements; 1 but for summable methods.
        """

    @abstractmethod
    def scatter(self, values: Tensor, places: Payload, out: Tensor, scale: float) -> None:
        """Compute ``out[place] += scale * value``, rank after rank; it is safe for any indices.

        Args:
            values: float32, (W, slots(n)).
            places: one row for each rank.
            out: float32, (n,).
            scale: factor of every payload.
        """

    def select_feedback(
        self, grad: Tensor, residual: Tensor, values: Tensor, places: Payload, key: Key, status: Tensor | None
    ) -> Payload:
        """Apply ``select`` to residual + grad, which is written to the residual, with 0 where it was sent.

        Returns:
            The places in the form that ``give_back`` takes, which need not be the one in which they travel.
        """
        kernels.accumulate(grad, residual, status)
        self.select(residual, values, places, key)
        self.scatter(values.unsqueeze(0), rows_of(places), residual, -1.0)
        return places

    def give_back(self, lost: Tensor, places: Payload, residual: Tensor, status: Tensor | None) -> None:
        """Add to the residual the rounding errors of the sent values, at the indices that
        ``select_feedback`` returned.
        """
        self.scatter(lost.unsqueeze(0), rows_of(places), residual, 1.0)
        if status is not None:
            kernels.nonfinite(lost, status)

    def layout(self, shape: Sequence[int]) -> Layout:
        fields = self._fields(math.prod(shape))
        return Layout(tuple(fields[i] for i in arranged(fields)))

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        self.encode_scaled(x, 1.0, payload, state, key)

    def encode_scaled(self, x: Tensor, scale: float, payload: Payload, state: State, key: Key) -> None:
        values, places = self._apart(payload, x.numel())
        full = self._full(values)
        self.select(x, full, places, key, scale)
        if full is not values:
            values.copy_(full)

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        if not self.exact:
            super().encode_feedback(grad, residual, payload, state, key, status)
            return
        values, places = self._apart(payload, grad.numel())
        full = self._full(values)
        chosen = self.select_feedback(grad, residual, full, places, key, status)
        if full is not values:
            values.copy_(full)
            self.give_back(full.sub_(values.float()), chosen, residual, status)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        values, places = self._apart(payloads, out.numel())
        self.scatter(values.float(), places, out, scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        n = math.prod(shape)
        self.check_places(self._apart(payload, n)[1], n)

    def check_places(self, places: Payload, n: int) -> None:
        """Refuse indices that the method does not write.

        Raises:
            WireError: the indices are not such.
        """
        return

    def _fields(self, n: int) -> tuple[Field, ...]:
        return Field("values", self.value_type, self.slots(n)), *self.places(n)

    def _apart(self, payload: Payload, n: int) -> tuple[Tensor, Payload]:
        """Split a payload into values and indices."""
        # The order is that of the items' sizes, and the same for all pieces.
        first = kernels.Each.first(n)
        if first not in self._orders:
            self._orders[first] = arranged(self._fields(first))
        values, *places = ordered(payload, self._orders[first])
        return values, tuple(places)

    @cached_property
    def _orders(self) -> dict[int, list[int]]:
        """The order in which the fields of so many elements travel."""
        return {}

    def _full(self, values: Tensor) -> Tensor:
        """A float32 buffer for the values: the payload's own field if it holds float32."""
        return values if values.dtype == torch.float32 else torch.empty_like(values, dtype=torch.float32)
