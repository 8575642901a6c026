"""Thin products for low-rank methods, factors in rows of (r, m).

On a CPU they are kernels of our own, which read the matrix once. On other devices, and from a rank on at which a BLAS
is faster, they are matrix products, batched where that copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gradwire.compressors.lowrank import ops
from gradwire.kernels import Pieces, philox
from gradwire.kernels.base import Op
from gradwire.kernels.units import exponent_of, power_of_two

__all__ = [
    "add_factors",
    "add_multiplied",
    "add_product",
    "add_products",
    "batch_of",
    "copy_into",
    "evenly_spaced",
    "grouped",
    "keep_usable",
    "keep_usable_each",
    "matrix_of",
    "multiply",
    "near_one_each",
    "normal",
    "orthonormal",
    "orthonormal_each",
    "padded",
    "similar_lengths",
    "solve_left",
    "solve_right",
    "thin",
]

T = TypeVar("T")

_THIN = 16
"""The highest rank of which the kernels are asked."""

_PADDING = 1 << 20
"""Most zeros behind the shorter rows of one call on an accelerator, where an operation costs more than they do."""


_FEW, _SHORT = 4, 1 << 16
"""The highest rank, and the longest row, of factors on which one program of a GPU works."""


def small_factors(*lists: Sequence[Tensor]) -> list[tuple[list[int], list[Tensor]]] | None:
    """Group factors of a GPU by their rank, for kernels that take few short rows; None where they are none of these.

    Args:
        lists: contiguous matrices, as many in each, of the same shapes.

    Returns:
        The numbers of the factors of each group, and those of each list as ``Pieces`` if there are several.
    """
    if lists[0][0].device.type not in ("cuda", "meta"):
        return None
    fits = all(0 < each.shape[0] <= _FEW and each.shape[1] <= _SHORT for each in lists[0])
    if not fits or not all(each.is_contiguous() for factors in lists for each in factors):
        return None
    groups = []
    for group in grouped(range(len(lists[0])), lambda i: lists[0][i].shape[0]):
        flats = [[factors[i].view(-1) for i in group] for factors in lists]
        found = [each[0] if len(group) == 1 else Pieces.of(each) for each in flats]
        if None in found:
            return None
        groups.append((group, cast("list[Tensor]", found)))
    return groups


def thin(x: Tensor, rank: int) -> bool:
    """Return whether products of ``x`` with factors of this rank have kernels of our own."""
    return x.is_cpu and 1 <= rank <= _THIN


def add_product(out: Tensor, p: Tensor, q: Tensor, scale: float) -> None:
    """Compute ``out += scale * p^T q`` without a temporary; shapes (m, L), (r, m), (r, L)."""
    rank = p.shape[0]
    if thin(out, rank):
        ops.lowrank_add_decoded(p.reshape(-1), q.reshape(-1), out.view(-1), rank, scale)
    else:
        out.addmm_(p.mT, q, alpha=scale)


def add_products(outs: Sequence[Tensor], ps: Sequence[Tensor], qs: Sequence[Tensor], scale: float) -> None:
    """Compute ``outs[i] += scale * ps[i]^T qs[i]`` for matrices of any shapes, those of one rank in one call."""
    for group in grouped(range(len(outs)), lambda i: ps[i].shape[0]):
        rank = ps[group[0]].shape[0]
        together = as_pieces([ps[i] for i in group], [qs[i] for i in group], [outs[i] for i in group], rank)
        if together is not None:
            left, right, out = together
            ops.lowrank_add_decoded(left, right, out, rank, scale)
            continue
        if thin(outs[group[0]], rank):
            for i in group:
                add_product(outs[i], ps[i], qs[i], scale)
            continue
        lefts, rights, targets = [ps[i].mT for i in group], [qs[i] for i in group], [outs[i] for i in group]
        add_multiplied(targets, lefts, rights, scale)


def add_factors(pairs: Sequence[tuple[Tensor, Tensor]], outs: Sequence[Tensor], rank: int, scale: float) -> None:
    """Compute ``outs[i] += scale * p^T q`` for each pair of flat factors, (r m) and (r L), of tensors of any shapes.

    Args:
        pairs: the factors of each tensor.
        outs: tensors, viewed as matrices as ``matrix_of`` has it.
        rank: largest rank; r follows from it and the shape.
        scale: factor of the products.
    """
    matrices, ps, qs = [], [], []
    for (p, q), out in zip(pairs, outs, strict=True):
        m, length, r = matrix_of(out.shape, rank)
        if r:
            matrices.append(out.view(m, length))
            ps.append(p.view(r, m))
            qs.append(q.view(r, length))
    add_products(matrices, ps, qs, scale)


def as_pieces(
    a: Sequence[Tensor], b: Sequence[Tensor], c: Sequence[Tensor], rank: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Convert each list of matrices to ``Pieces`` for our own kernels; None if one list lies in several tensors."""
    lists = a, b, c
    whole = all(each.is_contiguous() for matrices in lists for each in matrices)
    if len(a) < 2 or not whole or not thin(a[0], rank):
        return None
    found = [Pieces.of([each.view(-1) for each in matrices]) for matrices in lists]
    return None if None in found else cast("tuple[Tensor, Tensor, Tensor]", tuple(found))


def solve_left(xs: Sequence[Tensor], rights: Sequence[Tensor], lefts: Sequence[Tensor]) -> None:
    """Compute ``lefts[i] = rights[i] @ xs[i]^T``; shapes (r, m), (r, L), (m, L)."""
    if thin(xs[0], lefts[0].shape[0]):
        _solve(ops.lowrank_left, xs, rights, lefts)
    else:
        multiply(rights, [x.mT for x in xs], lefts)


def solve_right(xs: Sequence[Tensor], lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> None:
    """Compute ``rights[i] = lefts[i] @ xs[i]``; shapes (r, L), (r, m), (m, L)."""
    if thin(xs[0], rights[0].shape[0]):
        _solve(ops.lowrank_right, xs, lefts, rights)
    else:
        multiply(lefts, xs, rights)


def _solve(operation: Op[Any], xs: Sequence[Tensor], factors: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Call a kernel of our own, once for all matrices if they lie together."""
    rank = outs[0].shape[0]
    together = as_pieces(xs, factors, outs, rank)
    if together is not None:
        operation(*together, rank)
        return
    for x, factor, out in zip(xs, factors, outs, strict=True):
        operation(x.view(-1), factor.reshape(-1), out.view(-1), rank)


def add_multiplied(outs: Sequence[Tensor], lefts: Sequence[Tensor], rights: Sequence[Tensor], scale: float) -> None:
    """Compute ``outs[i] += scale * lefts[i] @ rights[i]``; what ``multiply`` takes in one launch is one here, too."""
    for run in evenly_spaced(lefts, rights, outs):
        left, right, out = (batch_of(each, run) for each in (lefts, rights, outs))
        if len(run) == 1:
            out[0].addmm_(left[0], right[0], alpha=scale)
        else:
            out.baddbmm_(left, right, alpha=scale)


def multiply(lefts: Sequence[Tensor], rights: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Compute ``outs[i] = lefts[i] @ rights[i]``; matrices of one shape at even distances in memory take one launch."""
    for run in evenly_spaced(lefts, rights, outs):
        left, right, out = (batch_of(each, run) for each in (lefts, rights, outs))
        if len(run) == 1:
            torch.mm(left[0], right[0], out=out[0])
        else:
            torch.bmm(left, right, out=out)


def orthonormal_each(
    factors: Sequence[Tensor], outs: Sequence[Tensor] | None = None, padding: int | None = None
) -> None:
    """Make the rows of each factor orthonormal; factors of similar length share a call.

    Args:
        factors: float32, (r, m) of any shapes.
        outs: tensors of these shapes that are written; None: the factors themselves.
        padding: most zeros behind the shorter rows of one call, >= 0, which change no product. More: fewer operations
            on more elements. None: none on the CPU, some on an accelerator.
    """
    small = small_factors(factors) if outs is None and factors else None
    for group, (rows,) in small or ():
        ops.lowrank_orthonormal(rows, factors[group[0]].shape[0])
    if small is not None:
        return
    written = factors if outs is None else outs
    for group in similar_lengths(factors, padding):
        copy_into([written[i] for i in group], orthonormal(padded([factors[i] for i in group])))


def copy_into(outs: Sequence[Tensor], rows: Tensor) -> None:
    """Copy each matrix of a contiguous batch to a tensor that may have shorter rows: (B, r, m) to (r, at most m)."""
    torch._foreach_copy_([row for out in outs for row in out.unbind()], _rows(rows, outs))


def padded(factors: Sequence[Tensor]) -> Tensor:
    """Copy factors of one rank to a batch, (B, r, the greatest length), with zeros behind shorter rows."""
    longest = max(each.shape[1] for each in factors)
    if all(each.shape[1] == longest for each in factors):
        return torch.stack(list(factors))
    batch = factors[0].new_zeros(len(factors), factors[0].shape[0], longest)
    torch._foreach_copy_(_rows(batch, factors), [row for each in factors for row in each.unbind()])
    return batch


def _rows(batch: Tensor, factors: Sequence[Tensor]) -> list[Tensor]:
    """View the rows of a batch as long as those of the factors; a GPU copies lists in one launch only if each is
    contiguous.
    """
    _, rank, longest = batch.shape
    sizes = [size for each in factors for _ in range(rank) for size in (each.shape[1], longest - each.shape[1])]
    return list(torch.split(batch.view(-1), sizes)[::2])


def similar_lengths(factors: Sequence[Tensor], padding: int | None = None) -> list[list[int]]:
    """Group the numbers of factors of one rank by similar length, the shortest of each group first.

    Args:
        factors: (r, m) of any shapes.
        padding: most zeros behind the shorter rows of a group, as for ``orthonormal_each``.

    >>> similar_lengths([torch.zeros(2, length) for length in (5, 40, 4, 5)], padding=10)
    [[2, 0, 3], [1]]
    """
    if padding is None:
        padding = 0 if not factors or factors[0].is_cpu else _PADDING
    groups: list[list[int]] = []
    filled = 0
    for i in sorted(range(len(factors)), key=lambda i: tuple(factors[i].shape)):
        rank, length = factors[i].shape
        alike = bool(groups) and factors[groups[-1][0]].shape[0] == rank
        if alike and rank * length * (len(groups[-1]) + 1) - filled - rank * length <= padding:
            groups[-1].append(i)
            filled += rank * length
        else:
            groups.append([i])
            filled = rank * length
    return groups


def orthonormal(rows: Tensor) -> Tensor:
    """Make the rows of each matrix of (B, r, m) orthonormal; a row that depends on earlier ones becomes zero.

    Gram-Schmidt, each row cleaned twice: where the second time takes half of what the first had left, that was
    rounding noise (W. Kahan's "twice is enough"). The comparison is false for NaN, so a broken gradient stays visible.
    """
    rows = rows / rows.abs().amax(-1, keepdim=True).clamp_min_(torch.finfo(rows.dtype).tiny)
    for j in range(rows.shape[1]):
        row, before = rows[:, j : j + 1], rows[:, :j]
        once = _cleaned(row, before)
        # The first row has no rows before it.
        twice = _cleaned(row, before) if j else once
        row.div_(twice).masked_fill_(twice <= 0.5 * once, 0.0)
    return rows


def _cleaned(row: Tensor, before: Tensor) -> Tensor:
    """Subtract the components along earlier rows from a row in place, and return its remaining length."""
    if before.shape[1]:
        row.sub_(row @ before.mT @ before)
    length: Tensor = row.norm(dim=-1, keepdim=True)
    return length


def keep_usable(factor: Tensor, warm: Tensor) -> None:
    """Copy the rows of ``factor`` as a warm start, except rows that are zero or not finite, which
    would never recover.
    """
    peak = factor.abs().amax(-1, keepdim=True)
    torch.where((peak > 0) & peak.isfinite(), factor, warm, out=warm)


def keep_usable_each(factors: Sequence[Tensor], warm: Sequence[Tensor]) -> None:
    """Apply ``keep_usable`` to several factors; the number of operations does not depend on how many there are."""
    small = small_factors(factors, warm)
    for group, (found, before) in small or ():
        ops.lowrank_keep(found, before, factors[group[0]].shape[0])
    if small is not None:
        return
    rows = [row for each in factors for row in each.unbind()]
    peaks = _peaks(rows)
    flags = ((peaks > 0) & peaks.isfinite()).unbind()
    usable = torch.cat([flag.expand(row.numel()) for flag, row in zip(flags, rows, strict=True)])
    after, before = (torch.cat([each.reshape(-1) for each in matrices]) for matrices in (factors, warm))
    kept = torch.split(torch.where(usable, after, before), [each.numel() for each in warm])
    torch._foreach_copy_(list(warm), [part.view(each.shape) for part, each in zip(kept, warm, strict=True)])


def _peaks(rows: Sequence[Tensor]) -> Tensor:
    """The largest magnitude of each tensor."""
    return torch.stack(torch._foreach_norm(list(rows), math.inf))


def near_one_each(factors: Sequence[Tensor]) -> list[Tensor]:
    """Apply ``lowrank_near_one`` to several matrices with results in one tensor, in as many operations as for one."""
    if factors[0].device.type in ("cuda", "meta"):
        scaled = _parts_of(torch.empty(sum(each.numel() for each in factors), device=factors[0].device), factors)
        small = small_factors(factors, scaled)
        for group, (given, outs) in small or ():
            ops.lowrank_near_one(given, outs, factors[group[0]].shape[0])
        if small is not None:
            return scaled
    whole = torch.cat([each.reshape(-1) for each in factors])
    rows = torch.split(whole, [each.shape[-1] for each in factors for _ in range(each.shape[0])])
    torch._foreach_mul_(list(rows), list(power_of_two(-exponent_of(_peaks(rows))).unbind()))
    return _parts_of(whole, factors)


def _parts_of(whole: Tensor, factors: Sequence[Tensor]) -> list[Tensor]:
    """View a flat tensor as matrices of these shapes, one after the other."""
    parts: Sequence[Tensor] = torch.split(whole, [each.numel() for each in factors])
    return [part.view(each.shape) for part, each in zip(parts, factors, strict=True)]


def matrix_of(shape: Sequence[int], rank: int) -> tuple[int, int, int]:
    """View a tensor as a matrix of ``shape[0]`` rows; return rows, columns, and its largest possible rank."""
    m, length = (shape[0] if shape else 1), math.prod(shape[1:])
    return m, length, min(rank, m, length)


def grouped(items: Iterable[T], by: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items for which ``by`` gives the same shape, in order of appearance, so that they can be batched."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(by(item), []).append(item)
    return list(groups.values())


def normal(count: int, stream: int, device: torch.device | None = None) -> Tensor:
    """Random numbers of mean 0 and variance 1, nearly normal, with the same bits on every device.

    Each is the sum of eight 16-bit numbers, an exact integer; the usual logarithm is not the same everywhere.
    """
    words = torch.empty(4 * count, dtype=torch.int32, device=device)
    philox(words, stream, 0)
    halves = (words & 0xFFFF) + ((words >> 16) & 0xFFFF)
    centred = halves.view(count, 4).sum(1) - 8 * 0xFFFF // 2
    return centred.float().mul_(1 / math.sqrt(8 * (2**32 - 1) / 12))


def evenly_spaced(*lists: Sequence[Tensor]) -> Iterator[list[int]]:
    """Find tensors that can be batched without a copy, as the pieces of a bucket often can.

    Args:
        lists: tensors, as many in each.

    Yields:
        Numbers of tensors which in every list have one shape and lie at equal distances in one storage.

    >>> x = torch.zeros(70)
    >>> list(evenly_spaced([x[0:10], x[15:25], x[40:44], x[30:40], x[50:60]]))
    [[0, 1, 3], [4], [2]]
    """

    def step(i: int, j: int) -> list[int] | None:
        """The distance of two neighbours in every list; None if they are not in one storage, or in decreasing order."""
        pairs = [(each[i], each[j]) for each in lists]
        if any(a.untyped_storage()._cdata != b.untyped_storage()._cdata for a, b in pairs):
            return None
        steps = [int(b.storage_offset() - a.storage_offset()) for a, b in pairs]
        return steps if min(steps) > 0 else None

    def form(i: int) -> Hashable:
        return tuple((each[i].shape, each[i].stride()) for each in lists)

    for group in grouped(range(len(lists[0])), form):
        run: list[int] = []
        for i in group:
            apart = step(run[-1], i) if run else None
            if run and (apart is None or (len(run) > 1 and apart != step(run[-2], run[-1]))):
                yield run
                run = []
            run.append(i)
        yield run


def batch_of(tensors: Sequence[Tensor], run: Sequence[int]) -> Tensor:
    """View the tensors that ``evenly_spaced`` found together as one of (B, ...)."""
    first, start = tensors[run[0]], tensors[run[0]].storage_offset()
    step = tensors[run[1]].storage_offset() - start if len(run) > 1 else 0
    return first.as_strided((len(run), *first.shape), (step, *first.stride()), start)
