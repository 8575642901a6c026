"""Pieces of a flat tensor, on which an operation works together in one call.

Invariants:
    * An operation that is given ``Pieces`` in place of its first tensor does for each piece what it does for a single
      tensor, with the same bits, in one call of its kernel: one launch or one parallel region, for any number of
      pieces.
    * Every argument is ``Pieces`` of as many, or one tensor or number for all of them, or ``Each`` with one number for
      every piece.
    * The checks of single tensors are made once for each combination of places, when its table is made. After that a
      call costs the same for one piece and for hundreds.

So a method that consists of operations alone works on the pieces of a bucket as it does on one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gradwire.errors import Verbatim, require

__all__ = ["Each", "Pieces", "Places", "adjacent"]

T = TypeVar("T")

MOST_DERIVED = 64
"""Most objects that places keep: a schedule may change in every step what one is made from."""


class Each(tuple[Any, ...]):
    """One number for every piece; tables are kept for as long as the same object is used again."""

    __slots__ = ()

    @staticmethod
    def first(value: object) -> Any:
        """The number of the first piece, or a number that all share."""
        return value[0] if isinstance(value, Each) else value


class Places:
    """The places at which pieces lie in any flat tensor of ``length`` elements.

    Args:
        length: number of elements of the flat tensor, or of each row of one with two dimensions.
        offsets: first element of each piece.
        sizes: elements of each piece.
        shapes: shape of the tensor that each piece is, for methods to which it matters; None: each is flat.

    Attributes:
        tables: made by operations for calls whose first pieces lie here.
    """

    def __init__(
        self,
        length: int,
        offsets: Sequence[int],
        sizes: Sequence[int],
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        inside = all(0 <= lo <= hi <= length for lo, hi in zip(offsets, ends, strict=True))
        require(inside, "Places.offsets", f"pieces inside {length} elements", Verbatim(f"{offsets} of sizes {sizes}"))
        self.length, self.offsets, self.sizes = length, Each(offsets), Each(sizes)
        self.shapes = tuple(map(tuple, shapes)) if shapes is not None else tuple((size,) for size in sizes)
        fit = [math.prod(shape) for shape in self.shapes] == list(sizes)
        require(fit, "Places.shapes", f"shapes of tensors of {list(sizes)} elements", Verbatim(str(shapes)))
        self.tables: dict[tuple[object, ...], tuple[Tensor, tuple[object, ...]]] = {}
        self._derived: dict[tuple[object, ...], Any] = {}

    def derive(self, make: Callable[..., T], *arguments: Hashable) -> T:
        """Return ``make(self, *arguments)``, which is made once and lives as long as these places, however many
        others there are.
        """
        known = (make, *arguments)
        found: T | None = self._derived.get(known)
        if found is None:
            if len(self._derived) > MOST_DERIVED:
                self._derived.clear()
            found = self._derived[known] = make(self, *arguments)
        return found


@lru_cache(maxsize=4096)
def places_of(
    length: int, offsets: tuple[int, ...], sizes: tuple[int, ...], shapes: tuple[tuple[int, ...], ...] | None = None
) -> Places:
    """Return the same object for the same places, so that tables are made once for views that are
    made in every step.
    """
    return Places(length, offsets, sizes, shapes)


@lru_cache(maxsize=1024)
def adjacent(sizes: tuple[int, ...]) -> Places:
    """Return the same object for the same sizes: the places of pieces that lie one after the other."""
    ends = [0, *accumulate(sizes)]
    return Places(ends[-1], ends[:-1], sizes)


class Pieces:
    """Parts of one tensor.

    Args:
        base: contiguous, of one dimension; or of two, whose rows have the same pieces.
        places: places of the pieces.
        block: elements that share a scale in stored codes (``gradwire.kernels.stored``); 0: the pieces are numbers.

    Raises:
        ConfigError: the base is not as long as the places say.

    Example:
        >>> from gradwire import kernels
        >>> x = torch.arange(8.0)
        >>> kernels.fill_where(Pieces(x, Places(8, [0, 5], [2, 1])), 0.5)
        >>> x.tolist()
        [0.5, 0.5, 2.0, 3.0, 4.0, 0.5, 6.0, 7.0]
    """

    __slots__ = ("base", "block", "places")

    def __init__(self, base: Tensor, places: Places, block: int = 0) -> None:
        fits = base.dim() in (1, 2) and base.size(-1) == places.length and base.is_contiguous()
        got = Verbatim(f"{base.dtype} of shape {tuple(base.shape)} with strides {base.stride()}")
        require(fits, "Pieces.base", f"contiguous, {places.length} elements or rows of as many", got)
        self.base, self.places, self.block = base, places, block

    @classmethod
    def of(
        cls, views: Sequence[Tensor], block: int = 0, shapes: tuple[tuple[int, ...], ...] | None = None
    ) -> Pieces | None:
        """Make these views pieces of their common tensor; None if they have none, or have gaps.

        Args:
            views: contiguous tensors of one dimension; or all of shape (ranks, elements), with contiguous rows that
                are equally far apart.
            block: elements that share a scale, as for the class.
            shapes: shapes of what the views are, as for ``Places``; only for views of one dimension.
        """
        first = views[0]
        storage = first.untyped_storage()
        alike = all(
            view.dtype is first.dtype
            and view.device == first.device
            and view.untyped_storage()._cdata == storage._cdata
            for view in views
        )
        if not alike or storage.nbytes() % first.dtype.itemsize:
            return None
        length = storage.nbytes() // first.dtype.itemsize
        whole = first.as_strided((length,), (1,), 0)
        offsets = [int(view.storage_offset()) for view in views]
        if all(view.dim() == 1 and view.is_contiguous() for view in views):
            numels = tuple(int(view.numel()) for view in views)
            return cls(whole, places_of(length, tuple(offsets), numels, shapes), block)
        if any(view.dim() != 2 or (view.size(1) > 1 and view.stride(1) != 1) for view in views):
            return None
        ranks, sizes = first.size(0), [int(view.size(1)) for view in views]
        stride = length if ranks == 1 else first.stride(0)
        alike = all(view.size(0) == ranks and (ranks == 1 or view.stride(0) == stride) for view in views)
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        if not alike or ranks * stride != length or max(ends) > stride:
            return None
        return cls(whole.view(ranks, stride), places_of(stride, tuple(offsets), tuple(sizes)))

    @staticmethod
    def within(x: object) -> Tensor:
        """The tensor in which pieces lie, or a tensor itself."""
        return x.base if isinstance(x, Pieces) else cast(Tensor, x)

    @staticmethod
    def like(x: object) -> Tensor:
        """Allocate as many elements as a tensor has, or pieces like those of another; their values are undefined."""
        return cast(Tensor, x.fresh()) if isinstance(x, Pieces) else torch.empty_like(cast(Tensor, x))

    @classmethod
    def side_by_side(cls, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Pieces:
        """Allocate pieces of these sizes, one after the other; their values are undefined."""
        places = adjacent(sizes)
        return cls(torch.empty(places.length, dtype=dtype, device=device), places)

    def at(self, base: Tensor) -> Pieces:
        """Return the same places of another tensor."""
        return Pieces(base, self.places)

    def as_tensor(self) -> Tensor:
        """Return the pieces themselves, typed as the tensor in whose place operations take them."""
        return cast(Tensor, self)

    def rows(self, which: int | slice) -> Pieces:
        """Return the pieces of one row, or of several adjacent ones."""
        return Pieces(self.base[which], self.places)

    def fresh(self) -> Pieces:
        """Allocate new elements for all pieces, at the same places; their values are undefined."""
        return Pieces(torch.empty_like(self.base), self.places)

    def __len__(self) -> int:
        return len(self.places.sizes)

    def each(self) -> list[Tensor]:
        """Yield the pieces one by one, as views."""
        ends = zip(self.places.offsets, self.places.sizes, strict=True)
        return [self.base[..., lo : lo + size] for lo, size in ends]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors that the pieces are."""
        return self.places.shapes

    @property
    def device(self) -> torch.device:
        """The device of the tensor."""
        return self.base.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        return self.base.dtype

    def float(self) -> Pieces:
        """Return the pieces themselves, which are float32."""
        require(self.dtype == torch.float32, "Pieces.float", "float32", Verbatim(str(self.dtype)))
        return self

    def numel(self) -> Each:
        """The number of elements of all pieces."""
        return self.places.sizes

    def view(self, *shape: int) -> Pieces:
        """Return the pieces themselves, because each of them is flat."""
        require(shape == (-1,), "Pieces.view", "-1", shape)
        return self

    def unsqueeze(self, dim: int) -> Pieces:
        """Return the pieces as those of the only row."""
        require(dim == 0 and self.base.dim() == 1, "Pieces.unsqueeze", "0, of a flat tensor", dim)
        return Pieces(self.base.unsqueeze(0), self.places)
