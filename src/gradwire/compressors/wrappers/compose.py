"""Composition of two methods: a sparse one chooses elements, another one encodes their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from gradwire import registry
from gradwire._short_traceback import short_traceback
from gradwire.compressors import capabilities
from gradwire.compressors.base import Compressor, Feedback
from gradwire.compressors.decoders import rows_of
from gradwire.compressors.sparsifier import Sparsifier, arranged, ordered
from gradwire.compressors.wrappers.around import declare_as, groups
from gradwire.errors import require
from gradwire.kernels import Each, Pieces
from gradwire.vocabulary import Field, Key, Layout, Payload, State, tensor_id

__all__ = ["Compose", "compose"]


@dataclass(frozen=True)
class Compose(Compressor):
    """Let ``outer`` choose the elements and ``inner`` encode their values: top-k with 4-bit values, for instance.

    C(x) = S'(Q(S x)), S x the k chosen elements, Q the inner method on a tensor of k, S' back to their places.

        both contractions    delta = delta_outer(n) delta_inner(k)
        both unbiased        omega = (1 + omega_outer(n)) (1 + omega_inner(k)) - 1

    The residual is exact whatever the inner method does: m = x - C(x), so an element that was sent keeps what its value
    lost. The payload has the fields of the values and then those of the places, the larger items first; of values of
    variable size the stream is last.

    Args:
        outer: a method whose payload comes apart into values and places: ``topk``, ``randomk``. Its own type of values
            is ignored.
        inner: any method of one round; it sees the chosen values as one tensor, in the order of their places.

    Raises:
        ConfigError: the outer method does not come apart; the inner one takes several rounds, keeps a memory of its
            own or turns the mean into signs; or one needs error feedback, with which the other is unsafe.

    Example:
        >>> from gradwire.compressors.levels.qsgd import QSGD
        >>> from gradwire.compressors.sparse.topk import TopK
        >>> code = compose(TopK(0.4), QSGD(bits=4))
        >>> code.decompress(code.compress(torch.tensor([1.0, -7.0, 3.0, -2.0, 7.0])), (5,)).tolist()
        [0.0, -7.0, 0.0, 0.0, 7.0]

    Source:
        D. Basu, D. Data, C. Karakus, S. Diggavi, "Qsparse-local-SGD: Distributed SGD with Quantization, Sparsification,
        and Local Computations", NeurIPS 2019.
    """

    outer: Compressor = registry.build("compressors", "topk", {"ratio": 0.1})  # noqa: RUF009
    inner: Compressor = registry.build("compressors", "qsgd")  # noqa: RUF009

    name = "compose"
    family = "hybrid"
    reference = "D. Basu, D. Data, C. Karakus, S. Diggavi, Qsparse-local-SGD, NeurIPS 2019"

    def __post_init__(self) -> None:
        apart = isinstance(self.outer, Sparsifier)
        require(apart, "Compose.outer", "a method of values and places, such as topk or randomk", self.outer)
        inner = self.inner
        alone = isinstance(inner, Compressor) and not capabilities.in_rounds(inner)
        require(alone, "Compose.inner", "a compressor of one round", inner)
        allowed = "a method whose ranks need not agree on values, as they do where a threshold is 'auto'"
        require(capabilities.advice(inner) == 0, "Compose.inner", allowed, inner)
        allowed = "a method that hands out the mean and not its sign, which unsent elements do not have"
        require(not capabilities.votes(inner), "Compose.inner", allowed, inner)
        require(capabilities.memory(inner) is None, "Compose.inner", "a method that is defined without a memory", inner)
        require(capabilities.average(inner), "Compose.inner", "a method whose payloads are averaged one by one", inner)
        for name, part, other in (("outer", self.outer, inner), ("inner", inner, self.outer)):
            # With a residual the noise would grow without bound, and without one the other method loses gradients.
            fits = part.feedback != "unsafe" or other.feedback in ("optional", "unsafe")
            allowed = f"safe with the error feedback that {other!r} needs: use {self.bounded}"
            require(fits, f"Compose.{name}", allowed, part)
        declare_as(inner, self, "fixed_size", "portable", "factorises", "headroom")

    def same_method(self, other: Compressor) -> bool:
        alike = capabilities.same_method
        return isinstance(other, Compose) and alike(self.outer, other.outer) and alike(self.inner, other.inner)

    @property
    def _outer(self) -> Sparsifier:
        assert isinstance(self.outer, Sparsifier)
        return self.outer

    @property
    def takes_pieces(self) -> bool:
        """Return whether pieces can be encoded, as they can by both methods where the inner one draws nothing in
        common.
        """
        both = capabilities.takes_pieces(self.outer) and capabilities.takes_pieces(self.inner)
        return both and self.fixed_size and not draws_in_common(self.inner)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Return whether both methods are unbiased."""
        return self.outer.unbiased and self.inner.unbiased

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Return whether either method is random."""
        return self.outer.random or self.inner.random

    @property
    def feedback(self) -> Feedback:
        if "unsafe" in (self.outer.feedback, self.inner.feedback):
            return "unsafe"
        return "required" if self.outer.feedback == "required" else "optional"

    @property
    def bounded(self) -> str:
        return f"compose({safe_form(self.outer)}, {safe_form(self.inner)})"

    @property
    def contraction(self) -> bool:
        return capabilities.contraction(self.outer) and capabilities.contraction(self.inner)

    def delta(self, n: int) -> float:
        if not self.contraction:
            return 0.0
        return capabilities.delta(self.outer, n) * capabilities.delta(self.inner, self._outer.slots(n))

    def omega(self, n: int) -> float:
        return (1 + capabilities.omega(self.outer, n)) * (1 + capabilities.omega(self.inner, self._outer.slots(n))) - 1

    @property
    def alignment(self) -> int:
        return self.outer.alignment

    def layout(self, shape: Sequence[int]) -> Layout:
        fields, order = self._fields(math.prod(shape))
        return Layout(tuple(fields[i] for i in order))

    def init_state(self, shape: Sequence[int], key: Key, device: torch.device | None = None) -> State:
        n = math.prod(shape)
        return {**self.outer.init_state((n,), key, device), **self.inner.init_state(self._slots(n), key, device)}

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        values, (coded, places) = self._values(x), self._apart(payload, x.numel())
        self._outer.select(x.view(-1), values, places, key)
        self.inner.encode(values, coded, state, self._inner_key(key))

    def encode_feedback(
        self, grad: Tensor, residual: Tensor, payload: Payload, state: State, key: Key, status: Tensor | None = None
    ) -> None:
        if not self._outer.exact:
            super().encode_feedback(grad, residual, payload, state, key, status)
            return
        values, (coded, places) = self._values(grad), self._apart(payload, grad.numel())
        chosen = self._outer.select_feedback(grad.view(-1), residual.view(-1), values, places, key, status)
        self.inner.encode(values, coded, state, self._inner_key(key))
        self.inner.add_decoded(coded, values, -1.0)
        self._outer.give_back(values, chosen, residual.view(-1), status)

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        coded, places = self._apart(payload, out.numel())
        values = self._values(out)
        capabilities.decode_many(self.inner, rows_of(coded), values, 1.0)
        self._outer.scatter(values.unsqueeze(0), rows_of(places), out.view(-1), scale)

    def add_decoded_many(self, payloads: Payload, out: Tensor, scale: float = 1.0) -> None:
        """Decode the values of several ranks first, so that they are added in one pass over ``out``."""
        coded, places = self._apart(payloads, out.numel())
        like = self._values(out)
        slots = Pieces.within(like).numel()
        for ranks in groups(Pieces.within(payloads[0]).shape[0], 4 * slots):
            values = torch.zeros(len(ranks), slots, dtype=torch.float32, device=out.device)
            for rank, own in zip(ranks, values, strict=True):
                self.inner.add_decoded(tuple(_rows(field, rank) for field in coded), _placed(own, like))
            own_places = tuple(_rows(field, slice(ranks.start, ranks.stop)) for field in places)
            self._outer.scatter(_placed(values, like), own_places, out.view(-1), scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        n = math.prod(shape)
        coded, places = self._apart(payload, n)
        self._outer.check_places(places, n)
        self.inner.check_payload(coded, self._slots(n))

    def _inner_key(self, key: Key) -> Key:
        """The key of the inner method; it must differ, because draws follow from the key alone."""
        return key.of(tensor_id(f"{key.tensor} inside")) if draws_in_common(self.inner) else key

    def _slots(self, n: int) -> tuple[int]:
        return (self._outer.slots(n),)

    def _values(self, x: Tensor) -> Tensor:
        """Allocate the values of a tensor, or those of all pieces, side by side."""
        many: object = x
        if isinstance(many, Pieces):
            sizes = tuple(self._outer.slots(n) for n in many.numel())
            return cast(Tensor, Pieces.side_by_side(sizes, torch.float32, x.device))
        return torch.empty(self._slots(x.numel()), dtype=torch.float32, device=x.device)

    def _fields(self, n: int) -> tuple[tuple[Field, ...], list[int]]:
        """The fields of the values, then those of the indices, and the order in which they travel."""
        values = self.inner.layout(self._slots(n)).fields
        fields = (*values, *self._outer.places(n))
        order = arranged(fields)
        if not self.fixed_size:
            order.append(order.pop(order.index(len(values) - 1)))
        return fields, order

    def _apart(self, payload: Payload, n: int) -> tuple[Payload, Payload]:
        """Split a payload into that of the values and the indices."""
        # The order is that of the items' sizes, and the same for all pieces.
        first = Each.first(n)
        fields, order = self._fields(first)
        end = len(fields) - len(self._outer.places(first))
        own = ordered(payload, order)
        return own[:end], own[end:]


def _rows(field: Tensor, which: int | slice) -> Tensor:
    """One row of a field, or several, of a tensor or of all pieces."""
    many: object = field
    return cast(Tensor, many.rows(which)) if isinstance(many, Pieces) else field[which]


def _placed(values: Tensor, like: Tensor) -> Tensor:
    """``values`` as they are, or as pieces that lie as those of ``like``."""
    many: object = like
    return cast(Tensor, many.at(values)) if isinstance(many, Pieces) else values


def safe_form(part: Compressor) -> str:
    """Return the form of a part, or a method in its place, that is safe with a residual."""
    if part.feedback != "unsafe":
        return repr(part)
    # Low-rank methods that are safe with a residual average in rounds, which nothing inside another method does.
    return "QSGD()" if part.family == "low rank" else capabilities.bounded(part) or "..."


def draws_in_common(code: Compressor) -> bool:
    """Return whether a method, or one inside it, chooses elements by a draw that is the same on all ranks."""
    if isinstance(code, Sparsifier):
        return code.random
    parts = (getattr(code, "outer", None), getattr(code, "inner", None))
    return any(isinstance(part, Compressor) and draws_in_common(part) for part in parts)


@short_traceback
def compose(outer: Compressor, inner: Compressor) -> Compose:
    """Make a method that sends the elements ``outer`` chooses, with values that ``inner`` encodes.

    Args:
        outer: ``TopK(...)`` or ``RandomK(...)``.
        inner: any compressor of one round.

    Raises:
        ConfigError: the two do not fit together.

    Example:
        >>> from gradwire.compressors.casts.bf16 import BF16
        >>> from gradwire.compressors.sparse.topk import TopK
        >>> compose(TopK(0.01), BF16()).inner
        BF16(rounding='nearest')
    """
    return Compose(outer, inner)
