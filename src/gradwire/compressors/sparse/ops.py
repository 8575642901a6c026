"""Operations on some of the elements: choose them, write them side by side, add them at their indices.

Entries: values, and for each the low 16 bits of its index; ``counts`` says how many lie in each segment of 65536
elements. Counts and indices that come from a peer are safe whatever they are.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.kernels.arguments import Flat, Flats, Floats, Rows, Status, Where, Written, refuse
from gradwire.kernels.base import declared
from gradwire.kernels.bits import unpack_bits
from gradwire.kernels.feedback import compensate
from gradwire.kernels.float32 import float32
from gradwire.kernels.segments import SEGMENT, low_bits, segments, write_places

__all__ = [
    "add_inside",
    "parts_add_decoded",
    "sparse_add_decoded",
    "tile_topk",
    "topk_encode",
    "topk_encode_feedback",
]

_TILE = 65536

Values = Annotated[Tensor, Flat(torch.float32, "k", written=True)]
Indices = Annotated[Tensor, Flat(torch.int16, "k", written=True)]
Counts = Annotated[Tensor, Flat(torch.int32, "segments(n)", written=True)]
Size = Annotated[int, Where("1 <= size <= _TILE and n % size == 0", "a part of x, at most {_TILE}")]


def _select(x: Tensor, k: int) -> Tensor:
    """Find the indices of the ``k`` elements of largest magnitude, in increasing order; of equal ones the first are
    taken.

    Magnitudes are compared as the integers their bits form, so a NaN counts as larger than infinity.
    """
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=x.device)
    magnitudes = x.view(torch.int32) & 0x7FFFFFFF
    least = magnitudes.topk(k, sorted=True).values[-1]
    above, ties = magnitudes > least, magnitudes == least
    chosen = above | (ties & (ties.cumsum(0) <= k - above.sum()))
    # The number of chosen elements is known, so the host does not wait for the device.
    return torch.searchsorted(chosen.cumsum(0), torch.arange(1, k + 1, device=x.device))


def _at_most_all(op: str, k: int, n: int) -> None:
    require(k <= n, f"{op}.values", f"at most {n} elements, one for each of x", k)


@declared(check=_at_most_all, merges=True)
def topk_encode(x: Floats, values: Values, indices: Indices, counts: Counts) -> None:
    """Write the k largest magnitudes of x and their indices: exactly k, of equal ones those of lowest index.

    Magnitudes are compared by their bits without the sign, so a NaN is larger than infinity and is sent first.

    Args:
        x: float32, n elements; not changed.
        values: float32, k <= n elements: the chosen ones, in order of their index.
        indices: int16, k elements: the low 16 bits of each index.
        counts: int32, ceil(n / 65536): how many of the chosen ones lie in each segment of 65536 elements.

    >>> values, counts = torch.empty(2), torch.empty(1, dtype=torch.int32)
    >>> indices = torch.empty(2, dtype=torch.int16)
    >>> topk_encode(torch.tensor([1.0, -5.0, 3.0, -2.0, 4.0]), values, indices, counts)
    >>> values.tolist(), indices.tolist(), counts.tolist()
    ([-5.0, 4.0], [1, 4], [2])

    Source: A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    """
    chosen = _select(x, values.numel())
    values.copy_(x[chosen])
    write_places(chosen, indices, counts)


@declared(check=_at_most_all, merges=True)
def topk_encode_feedback(
    grad: Written, residual: Written, values: Values, indices: Indices, counts: Counts, status: Status = None
) -> None:
    """Encode x = residual + grad as ``topk_encode`` does; the residual becomes x with +0 where it was sent.

    Args:
        grad: float32, n elements. Written only where ``status`` is given: it then receives the old residual.
        residual: float32, n elements.
        values: float32, k <= n elements.
        indices: int16, k elements.
        counts: int32, ceil(n / 65536).
        status: int32, 1 element, or None: bit 0 is set where residual + grad is not finite. Copying ``grad`` back to
            ``residual`` then undoes the step.

    >>> residual, values, counts = torch.zeros(3), torch.empty(1), torch.empty(1, dtype=torch.int32)
    >>> indices = torch.empty(1, dtype=torch.int16)
    >>> topk_encode_feedback(torch.tensor([1.0, -5.0, 3.0]), residual, values, indices, counts)
    >>> residual.tolist(), values.item(), indices.item()
    ([1.0, 0.0, 3.0], -5.0, 1)

    Source: as ``topk_encode``; S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    x = compensate(grad, residual, status)
    chosen = _select(x, values.numel())
    values.copy_(x[chosen])
    write_places(chosen, indices, counts)
    residual.copy_(x.index_fill_(0, chosen, 0.0))


def _as_many_of_each(op: str, k: int, size: int, n: int) -> None:
    tiles = n // size
    fits = k == 0 if tiles == 0 else k % tiles == 0 and tiles <= k <= n
    require(fits, f"{op}.values", f"as many for each of {tiles} tiles, 1 to {size}", k)


@declared(check=_as_many_of_each, merges=True)
def tile_topk(x: Floats, values: Values, places: Indices, size: Size) -> None:
    """Write the k largest magnitudes of each tile and their indices: of equal ones those that come first.

    Magnitudes are compared by their bits without the sign, so a NaN is larger than infinity and is chosen first.

    Args:
        x: float32, tiles of ``size`` elements, one after the other; not changed.
        values: float32, k of each tile, in the order of their places.
        places: int16, as many: the 16 bits of the place in the tile.
        size: elements of a tile, 1 to 65536.

    >>> values, places = torch.empty(4), torch.empty(4, dtype=torch.int16)
    >>> tile_topk(torch.tensor([1.0, -5.0, 3.0, 2.0, 2.0, 2.0]), values, places, size=3)
    >>> values.tolist(), places.tolist()
    ([-5.0, 3.0, 2.0, 2.0], [1, 2, 0, 1])
    """
    if x.numel() == 0:
        return
    tiles = x.view(-1, size)
    k = values.numel() // tiles.size(0)
    magnitudes = tiles.view(torch.int32) & 0x7FFFFFFF
    found = magnitudes.sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    values.copy_(tiles.gather(1, found).view(-1))
    places.copy_((found.view(-1) ^ 0x8000) - 0x8000)


def _places_of(counts: Tensor, indices: Tensor) -> Tensor:
    """The index of each entry, whatever the counts are; entries that the counts do not cover get one beyond all
    segments.
    """
    ends = counts.to(torch.int64).clamp_(min=0).cumsum(0)
    covered = torch.searchsorted(ends, torch.arange(indices.numel(), device=indices.device), right=True)
    return covered * SEGMENT + low_bits(indices)


def add_inside(out: Tensor, places: Tensor, values: Tensor) -> None:
    """Compute ``out[place] += value`` for indices below n without counting the others, because a device would have to
    wait.
    """
    if out.numel():
        inside = places < out.numel()
        # Only -0.0 leaves every number as it is.
        out.index_add_(0, places.clamp(max=out.numel() - 1), values.masked_fill(~inside, -0.0))


@declared(merges=True)
def sparse_add_decoded(
    values: Annotated[Tensor, Rows(torch.float32, "k")],
    indices: Annotated[Tensor, Rows(torch.int16, "k")],
    counts: Annotated[Tensor, Rows(torch.int32, "segments(n)")],
    out: Written,
    scale: float,
) -> None:
    """Add the payloads of all ranks, rank 0 first: out[index] = out[index] + scale * value.

    Bytes from a peer are safe whatever they are: a negative count is 0, what the counts claim beyond the k values of
    a rank does not exist, and an index beyond ``out`` is skipped.

    Args:
        values: float32, (W, k) with contiguous rows, as ``topk_encode`` writes them on each rank.
        indices: int16, (W, k) with contiguous rows: the low 16 bits of the indices.
        counts: int32, (W, ceil(n / 65536)) with contiguous rows: how many of the k lie in each segment.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out = torch.zeros(5)
    >>> indices, counts = torch.tensor([[1, 4]], dtype=torch.int16), torch.tensor([[2]], dtype=torch.int32)
    >>> sparse_add_decoded(torch.tensor([[-5.0, 4.0]]), indices, counts, out, scale=0.5)
    >>> out.tolist()
    [0.0, -2.5, 0.0, 0.0, 2.0]

    Source: as ``topk_encode``.
    """
    for row_values, row_indices, row_counts in zip(values, indices, counts, strict=True):
        add_inside(out, _places_of(row_counts, row_indices), row_values * float32(scale))


Parts = Sequence[Tensor]


def _parts_that_fit(op: str, values: Parts, indices: Parts, counts: Parts, levels: Parts, n: int) -> None:
    lengths = [len(values), len(indices), len(counts), len(levels)]
    if min(lengths) != max(lengths):
        refuse(op, "given as many tensors of each kind", lengths)
    most = segments(n)
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        two, k = level.numel(), index.numel()
        if two not in (0, 2):
            refuse(f"{op}.levels", "none or two", two)
        dtype, size = (torch.uint8, -(-k // 8)) if two else (torch.float32, k)
        if value.dtype is not dtype or value.numel() != size:
            refuse(f"{op}.values", f"{size} elements of {dtype} for {k} indices and {two} levels", value.shape)
        if count.numel() != most:
            refuse(f"{op}.counts", f"{most}, one for each segment", count.numel())


@declared(check=_parts_that_fit)
def parts_add_decoded(
    values: Annotated[Parts, Flats((torch.float32, torch.uint8))],
    indices: Annotated[Parts, Flats(torch.int16, sizes=True)],
    counts: Annotated[Parts, Flats(torch.int32)],
    levels: Annotated[Parts, Flats(torch.float32)],
    out: Written,
    scale: float,
) -> None:
    """Add part after part: out[index] = out[index] + scale * value. Invalid bytes are as safe as in
    ``sparse_add_decoded``.

    Args:
        values: a tensor for each part: float32, k elements; or, where it has levels, uint8 of ceil(k / 8), whose bit i
            chooses the level of element i.
        indices: int16, k: the low 16 bits of the indices.
        counts: int32, ceil(n / 65536): how many of the k lie in each segment of 65536 elements.
        levels: float32: the levels of a clear and of a set bit, or none.
        out: float32, n elements.
        scale: 1 to decode, -1 to subtract, 1 / W for the mean; rounded to float32.

    >>> out, counts = torch.zeros(5), torch.tensor([2], dtype=torch.int32)
    >>> bits, levels = torch.tensor([0b10], dtype=torch.uint8), torch.tensor([3.0, -3.0])
    >>> parts_add_decoded([bits], [torch.tensor([1, 4], dtype=torch.int16)], [counts], [levels], out, scale=0.5)
    >>> out.tolist()
    [0.0, 1.5, 0.0, 0.0, -1.5]
    """
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        if level.numel():
            value = torch.where(unpack_bits(value, index.numel()), level[1], level[0])
        add_inside(out, _places_of(count, index), value * float32(scale))
