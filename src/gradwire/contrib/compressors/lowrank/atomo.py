"""A random choice of singular directions, scaled so that the mean is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.compressors.base import Compressor
from gradwire.compressors.capabilities import MOST_USED
from gradwire.compressors.lowrank.products import add_product
from gradwire.contrib.compressors import _entries
from gradwire.errors import WireError, is_float32, require
from gradwire.vocabulary import Field, Key, Layout, Payload, State

__all__ = ["Atomo"]


@dataclass(frozen=True)
class Atomo(Compressor):
    """Decompose the gradient into singular directions and send each with its own probability.

    X = sum_i l_i u_i v_i^T;  C(X) = sum_i t_i (l_i / p_i) u_i v_i^T,  t_i = 1 with probability p_i, else 0.

    The p_i minimise the variance sum_i l_i^2 (1/p_i - 1) among those with sum p_i = s: p_i = min(1, c l_i), where c is
    found by filling from the largest l_i downwards. With r = min(m, L) singular values,

        omega = r / s - 1,    the variance of the equal probabilities s / r, which the best ones cannot exceed.

    The number of directions in a payload is random, s on average and sometimes none. It is not drawn again until it
    suits, as the authors' code does: that would destroy the mean.

    The basis comes from the eigenvectors of the smaller Gram matrix in float64. Whatever orthonormal basis it is, X is
    the sum of its projections, so an inexact one costs variance and no bias. Time is that of an eigendecomposition.

    A tensor is a matrix of ``shape[0]`` rows; a vector is folded to a square but travels dense by default.

    Args:
        budget: s > 0, how many directions are sent on average. More: more bytes, less noise.
        min_compression: least factor of compression, >= 1; tensors that would not shrink by more than this on average
            travel dense.

    Raises:
        ConfigError: a parameter is outside its range.

    Example:
        >>> code = Atomo(budget=3)
        >>> x = torch.outer(torch.tensor([1.0, -2.0, 2.0]), torch.tensor([3.0, 0.0, 4.0, 0.0]))
        >>> torch.allclose(code.decompress(code.compress(x), x.shape), x)
        True

    Source:
        H. Wang, S. Sievert, S. Liu, Z. Charles, D. Papailiopoulos, S. Wright, "ATOMO: Communication-efficient Learning
        via Atomic Sparsification", NeurIPS 2018.
    """

    budget: float = 3.0
    min_compression: float = 2.0

    name = "atomo"
    family = "low rank"
    reference = "H. Wang, S. Sievert, S. Liu, Z. Charles, D. Papailiopoulos, S. Wright, ATOMO, NeurIPS 2018"
    unbiased = True
    random = True
    fixed_size = False
    used_on_host = True
    portable = False
    factorises = True
    feedback = "unsafe"
    alignment = 0

    def __post_init__(self) -> None:
        require(is_float32(self.budget) and self.budget > 0, "Atomo.budget", "a finite number > 0", self.budget)
        ok = is_float32(self.min_compression) and self.min_compression >= 1
        require(ok, "Atomo.min_compression", "a finite number >= 1", self.min_compression)

    @property
    def bounded(self) -> str:
        return f"PowerSGD(rank={max(1, round(self.budget))})"

    def omega(self, n: int) -> float:
        return max(0.0, math.isqrt(n) / self.budget - 1)

    def pays_for(self, shape: Sequence[int]) -> bool:
        nbytes = 4 * math.prod(shape)
        return len(shape) >= 2 and self.traffic(shape) * self.min_compression < nbytes <= MOST_USED

    def traffic(self, shape: Sequence[int]) -> float:
        rows, columns = _matrix_shape(shape)
        return 8 + min(4.0 * math.prod(shape), 4 * min(self.budget, rows, columns) * (rows + columns))

    def layout(self, shape: Sequence[int]) -> Layout:
        """The layout: ``atoms`` counts the directions that follow, or is -1 if the stream holds the elements
        themselves.
        """
        return Layout(
            (
                Field("used", torch.int32, 1),
                Field("atoms", torch.int32, 1),
                Field("stream", torch.uint8, 4 * math.prod(shape)),
            )
        )

    def encode(self, x: Tensor, payload: Payload, state: State, key: Key) -> None:
        count, values = self._coded(x, key)
        used, atoms, stream = payload
        atoms.fill_(count)
        _entries.fill(used, stream, values)

    def _coded(self, x: Tensor, key: Key) -> tuple[int, Tensor]:
        """The number of directions, and the stream; all elements if that is shorter or a number is not finite."""
        flat, (rows, columns) = x.view(-1), _matrix_shape(x.shape)
        if x.numel() == 0 or not bool(flat.isfinite().all()):
            return -1, flat
        padded = torch.nn.functional.pad(flat, (0, rows * columns - x.numel()))
        try:
            left, right = self._draw(padded.view(rows, columns), key)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # now and then LAPACK does not converge
            return -1, flat
        if left.numel() + right.numel() >= x.numel():
            return -1, (left.mT @ right).view(-1)[: x.numel()]
        return left.shape[0], torch.cat([left.reshape(-1), right.reshape(-1)])

    def add_decoded(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        self.check_payload(payload, out.shape)
        count, values = int(payload[1]), payload[2]
        rows, columns = _matrix_shape(out.shape)
        if count < 0:
            out.view(-1).add_(_entries.part(values, 0, out.numel(), torch.float32), alpha=scale)
            return
        left = _entries.part(values, 0, count * rows, torch.float32).view(count, rows)
        right = _entries.part(values, 4 * count * rows, count * columns, torch.float32).view(count, columns)
        whole = out.numel() // columns if out.numel() else 0
        add_product(out.view(-1)[: whole * columns].view(whole, columns), left[:, :whole], right, scale)
        if whole < rows:
            rest = out.view(-1)[whole * columns :]
            rest.addmv_(right[:, : rest.numel()].mT, left[:, whole], alpha=scale)

    def check_payload(self, payload: Payload, shape: Sequence[int]) -> None:
        """Refuse a count of directions that does not match the stream.

        Raises:
            WireError: the bytes in use are not those of so many directions, or of all elements.
        """
        used, atoms, capacity = int(payload[0]), int(payload[1]), 4 * math.prod(shape)
        needed = capacity if atoms == -1 else 4 * atoms * sum(_matrix_shape(shape))
        if atoms < -1 or used != needed or used > min(capacity, payload[2].numel()):
            raise WireError(f"atomo payload of {atoms} atoms must use {needed} of {capacity} bytes, got {used}")

    def _draw(self, x: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Draw directions of a matrix: (count, rows) and (count, columns), whose outer products add up."""
        flipped = x.shape[0] > x.shape[1]
        wide = x.mT if flipped else x
        basis, sizes = _directions(wide)
        chances = _chances(sizes, self.budget)
        words = torch.empty(sizes.numel(), dtype=torch.int32, device=x.device)
        kernels.philox(words, key.stream(), key.step)
        chosen = ((words.double() + 2**31 + 0.5) / 2**32 < chances).nonzero().view(-1)
        vectors = basis[chosen].float()
        images = (vectors @ wide) / chances[chosen].unsqueeze(1).float()
        return (images, vectors) if flipped else (vectors, images)


def _directions(wide: Tensor) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of the columns, in rows, and the norm of the matrix along each, decreasing; float64.

    A square below the rounding of the largest is that rounding: a direction of size 0 would never be sent.
    """
    # A tensor without dimensions does not make a float32 matrix float64.
    scaled = wide.double() / wide.abs().amax().clamp_min_(torch.finfo(torch.float32).tiny)
    squares, vectors = torch.linalg.eigh(scaled @ scaled.mT)
    least = squares[-1:].clamp_min(0.0) * (squares.numel() * torch.finfo(squares.dtype).eps)
    return vectors.mT.flip(0), squares.flip(0).clamp_min_(least).sqrt_()


def _chances(sizes: Tensor, budget: float) -> Tensor:
    """The probabilities p_i = min(1, c l_i) with sum p_i = budget, for decreasing l, computed from the largest on.

    >>> _chances(torch.tensor([8.0, 1.0, 1.0]), 2.0).tolist()
    [1.0, 0.5, 0.5]
    """
    left = budget - torch.arange(sizes.numel(), dtype=sizes.dtype, device=sizes.device)
    tails = sizes.flip(0).cumsum(0).flip(0)
    certain = (sizes * left > tails).cumprod(0).bool()
    first = certain.sum().clamp_max(sizes.numel() - 1).view(1)
    shared = sizes * (left[first] / tails[first].clamp_min(torch.finfo(sizes.dtype).tiny))
    return shared.masked_fill(certain, 1.0).clamp_(0.0, 1.0)


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The numbers of rows and columns; a vector is folded to a square whose last row is incomplete."""
    n = math.prod(shape)
    rows = shape[0] if shape else 1
    columns = n // rows if rows else 0
    if min(rows, columns) <= 1:
        columns = math.isqrt(n)
        rows = -(-n // columns) if n else 0
    return rows, columns
