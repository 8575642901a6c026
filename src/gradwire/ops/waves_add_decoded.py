"""Adds to each tile of a matrix the few waves that a payload names."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_rows, check_vector, float32
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["waves_add_decoded"]


def _check(
    values: Tensor, places: Tensor, tall: Tensor, wide: Tensor, out: Tensor,
    a: int, b: int, down: int, across: int, pitch: int, scale: float,  # noqa: ARG001
) -> None:  # fmt: skip
    op, tiles = "waves_add_decoded", down * across
    check_vector(f"{op}.out", out, torch.float32, out)
    sizes = min(a, b, down, across) >= 1 and a * b <= 65536 and pitch >= across * b
    require(sizes, f"{op}.a, b, down, across, pitch", "tiles of a matrix", (a, b, down, across, pitch))
    last = (down * a - 1) * pitch + across * b
    require(out.numel() >= last, f"{op}.out", f"at least {last} elements, up to the last of the tiles", out.numel())
    check_vector(f"{op}.tall", tall, torch.float32, out, a * a)
    check_vector(f"{op}.wide", wide, torch.float32, out, b * b)
    count = values.size(1) if values.dim() == 2 else 0
    check_rows(f"{op}.values", values, torch.float32, out, count)
    require(count % tiles == 0 and count > 0, f"{op}.values", f"as many for each of {tiles} tiles", count)
    check_rows(f"{op}.places", places, torch.int16, out, count)
    require(places.size(0) == values.size(0), f"{op}.places", "as many rows as values", places.size(0))


@operation(
    "waves_add_decoded(Tensor values, Tensor places, Tensor tall, Tensor wide, Tensor(a!) out, int a, int b, int down,"
    " int across, int pitch, float scale) -> ()",
    _check,
)
def waves_add_decoded(
    values: Tensor, places: Tensor, tall: Tensor, wide: Tensor, out: Tensor,
    a: int, b: int, down: int, across: int, pitch: int, scale: float,
) -> None:  # fmt: skip
    """Add the payloads of all ranks, rank 0 first, tile by tile: tile = tile + scale * sum_c (v_c tall_f) wide_g^T.

    Coefficient c of a tile is at row f and column g of its spectrum, place f b + g; the sum runs over c, in order and
    in float32. A place beyond the tile is skipped.

    Args:
        values: float32, (W, tiles * k), rows contiguous: k coefficients for each tile, the tiles row by row.
        places: int16, (W, tiles * k), rows contiguous, 16 bits each.
        tall: float32, a * a: in each row the wave of one frequency.
        wide: float32, b * b.
        out: float32: the rows of a matrix from the first element of the first tile on.
        a: rows of a tile.
        b: columns of a tile; a tile has at most 65536 elements.
        down: tiles below each other.
        across: tiles side by side.
        pitch: elements from one row of the matrix to the next.
        scale: factor of every payload, rounded to float32; 1 / W for the mean.

    Raises:
        ConfigError: a tensor or a size is not of this form.

    >>> out, one = torch.zeros(4), torch.ones(1)
    >>> values, places = torch.tensor([[3.0, -2.0]]), torch.zeros(1, 2, dtype=torch.int16)
    >>> waves_add_decoded(values, places, one, one, out, 1, 1, 2, 1, 3, 0.5)
    >>> out.tolist()
    [1.5, 0.0, 0.0, -1.0]
    """
    tiles = out.as_strided((down, across, a, b), (a * pitch, b, pitch, 1))
    for value, place in zip(values, places, strict=True):
        where = (place.long() & 0xFFFF).view(down, across, -1)
        inside = where < a * b
        left = tall.view(a, a)[(where // b).clamp(max=a - 1)] * value.view(where.shape).unsqueeze(-1)
        right = wide.view(b, b)[where % b]
        sums = torch.zeros_like(tiles, memory_format=torch.contiguous_format)
        for c in range(where.size(2)):
            wave = left[:, :, c].unsqueeze(-1) * right[:, :, c].unsqueeze(-2)
            sums = torch.where(inside[:, :, c, None, None], sums + wave, sums)
        tiles += sums * float32(scale)


@waves_add_decoded.kernel("CPU")
def _cpu(
    values: Tensor, places: Tensor, tall: Tensor, wide: Tensor, out: Tensor,
    a: int, b: int, down: int, across: int, pitch: int, scale: float,
) -> None:  # fmt: skip
    rows = values.data_ptr(), 4 * values.stride(0), places.data_ptr(), 2 * places.stride(0), values.size(0)
    waves = values.size(1) // (down * across), tall.data_ptr(), a, wide.data_ptr(), b
    kernels.waves_add_decoded(*rows, *waves, out.data_ptr(), down, across, pitch, scale, torch.get_num_threads())
