"""Operations on transformed blocks: THC's rotations, and DeMo's waves.

``_thc`` says how the blocks of a tensor lie, and what their codes stand for.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from gradwire.contrib.compressors.transforms import _thc
from gradwire.contrib.compressors.transforms._thc import coordinates
from gradwire.errors import require
from gradwire.kernels.arguments import Flat, Floats, Rows, Where, Written
from gradwire.kernels.base import declared
from gradwire.kernels.float32 import float32
from gradwire.kernels.hadamard import LONGEST, flip, hadamard  # noqa: F401 (annotations name it)
from gradwire.kernels.levels import norms_of, uniform

__all__ = [
    "block_norms",
    "thc_add_decoded",
    "thc_begin",
    "thc_encode",
    "thc_keep",
    "waves_add_decoded",
]

NormBlock = Annotated[int, Where("16 <= block <= 65536 and block % 16 == 0", "a multiple of 16 from 16 to 65536")]


@declared
def block_norms(
    x: Floats, norms: Annotated[Tensor, Flat(torch.float32, "-(-n // block)", written=True)], block: NormBlock
) -> None:
    """The root of the sum of squares of each block, as ``qsgd_encode`` takes it with the norm "l2".

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block). One below 2**-120 is zero.
        block: a multiple of 16 from 16 to 65536.

    >>> norms = torch.empty(1)
    >>> block_norms(torch.tensor([3.0, -4.0]), norms, block=16)
    >>> norms.item()
    5.0
    """
    norms.copy_(norms_of(x, block, "l2"))


@declared(native=False)
def thc_begin(seed: Annotated[Tensor, Flat(torch.int64, "n", written=True)], key: int, step: int) -> None:
    """Write the name of the stream of signs, which travels with the codes.

    Args:
        seed: int64, (2,), or empty for a tensor without elements; of any other length all but the first are the step.
        key: key of the stream, a signed 64-bit integer.
        step: step of the stream.

    >>> seed = torch.empty(2, dtype=torch.int64)
    >>> thc_begin(seed, key=-5, step=3)
    >>> seed.tolist()
    [-5, 3]
    """
    seed[:1].fill_(key)
    seed[1:].fill_(step)


@declared(native=False)
def thc_keep(
    codes: Annotated[Tensor, Flat(torch.int32, "n")], own: Annotated[Tensor, Flat(torch.int32, "n", written=True)]
) -> None:
    """Copy codes before those of other ranks are added to them.

    Args:
        codes: int32, n words.
        own: int32, n words.

    >>> own = torch.empty(2, dtype=torch.int32)
    >>> thc_keep(torch.tensor([7, 1], dtype=torch.int32), own)
    >>> own.tolist()
    [7, 1]
    """
    own.copy_(codes)


Norms = Annotated[Tensor, Flat(torch.float32, "-(-n // block)")]
Signs = Annotated[Tensor, Flat(torch.int64, "2 * min(n, 1)")]
Grid = Annotated[int, Where("1 <= levels <= 255", "an integer from 1 to 255")]
Clip = Annotated[float, Where("0 < float32(clip) < math.inf", "a finite number > 0")]
Rotated = Annotated[
    int, Where("16 <= block <= LONGEST and block & (block - 1) == 0", "a power of two from 16 to {LONGEST}")
]


@declared
def thc_encode(
    x: Floats,
    norms: Norms,
    seed: Signs,
    codes: Annotated[Tensor, Flat(torch.int32, "coordinates(n, block) // 4 + min(n, 1)", written=True)],
    block: Rotated,
    levels: Grid,
    clip: Clip,
    key: int,
    step: int,
) -> None:
    """Rotate each block and round its coordinates at random to ``levels`` + 1 points.

        y = H D x;  a = (y / (clip N) + 1) levels / 2, cut off at 0 and at levels;  code = floor(a + r)

    H, D as in ``_thc``; r = (u + 0.5) / 2**16 with u the 16 bits that ``philox`` gives coordinate i, as in
    ``qsgd_encode``.

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block): N, at least the length of the block. Where it is zero or not finite the codes
            are zero.
        seed: int64, (key, step) of the stream of signs; the same on all ranks. Empty if n = 0.
        codes: int32: a byte for each coordinate, four to a word, and then the number 1. Words of up to
            255 // levels ranks may be added.
        block: a power of two from 16 to 16384; the last one is padded to the next power of two, at least 16.
        levels: number of steps of the grid, 1 to 255; more mean less noise and fewer ranks.
        clip: bound in standard deviations of the coordinates.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks.
        step: step of the random stream.

    >>> codes = torch.empty(5, dtype=torch.int32)
    >>> thc_encode(torch.zeros(3), torch.ones(1), torch.tensor([1, 2]), codes, 16, levels=2, clip=2.0, key=1, step=0)
    >>> codes.view(torch.uint8)[:16].tolist() == [1] * 16, codes[-1].item()
    (True, 1)

    Source: M. Li, R. Ben Basat, S. Vargaftik, C. Lao, K. Xu, M. Mitzenmacher, M. Yu, "THC: Accelerating Distributed
    Deep Learning Using Tensor Homomorphic Compression", NSDI 2024.
    """
    if x.numel() == 0:
        return
    flipped = flip(torch.nn.functional.pad(x, (0, coordinates(x.numel(), block) - x.numel())), *seed)
    shifts, written = uniform(flipped.numel(), key, step, x.device), []
    factor = float32(0.5 * levels / float32(clip))
    for rows, size in _thc.parts(x, block):
        here = slice(rows.start * block, rows.start * block + (rows.stop - rows.start) * size)
        usable = norms[rows].isfinite() & (norms[rows] > 0)
        factors = torch.full_like(norms[rows], factor).div_(norms[rows].masked_fill(~usable, math.inf))
        place = hadamard(flipped[here].view(-1, size)) * factors.unsqueeze(1) + 0.5 * levels
        shifted = place.clamp_(0.0, levels) + shifts[here].view(-1, size)
        codes_here = shifted.clamp_(max=levels).to(torch.uint8).masked_fill_(~usable.unsqueeze(1), 0)
        written.append(codes_here.view(-1))
    codes[:-1].view(torch.uint8).copy_(torch.cat(written))
    codes[-1:].fill_(1)


@declared
def thc_add_decoded(
    norms: Norms,
    seed: Signs,
    codes: Annotated[Tensor, Flat(torch.int32, "coordinates(n, block) // 4 + min(n, 1)")],
    out: Written,
    block: Rotated,
    levels: Grid,
    clip: Clip,
    scale: float,
) -> None:
    """Decode a sum S of the codes of W ranks and add it.

        y = (2 S / (levels W) - 1) clip N / sqrt(B);  out = out + scale D H y / sqrt(B)

    Args:
        norms: float32, ceil(n / block): N, as the codes were made with. One that is not finite gives NaN.
        seed: int64, (key, step) of the stream of signs. Empty if n = 0.
        codes: int32, as ``thc_encode`` writes them, summed; the last one is W. Where W is not from 1 to 255 // levels,
            everything becomes NaN: the sums may have run over.
        out: float32, n elements.
        block: a power of two from 16 to 16384, as encoded.
        levels: number of steps of the grid, 1 to 255, as encoded.
        clip: bound in standard deviations of the coordinates, as encoded.
        scale: 1 to decode, -1 to subtract; rounded to float32.

    >>> codes, out = torch.full((5,), 0x01010101, dtype=torch.int32), torch.ones(3)
    >>> codes[-1] = 1
    >>> thc_add_decoded(torch.ones(1), torch.tensor([1, 2]), codes, out, 16, levels=2, clip=2.0, scale=1.0)
    >>> out.tolist()
    [1.0, 1.0, 1.0]

    Source: as ``thc_encode``.
    """
    if out.numel() == 0:
        return
    world = codes[-1:]
    fits = (world > 0) & (world <= 255 // levels)
    step = (2.0 / (levels * world).float()).masked_fill_(~fits, torch.nan)
    sums, decoded = codes[:-1].view(torch.uint8).float(), []
    for rows, size in _thc.parts(out, block):
        here = slice(rows.start * block, rows.start * block + (rows.stop - rows.start) * size)
        unit = norms[rows].unsqueeze(1) * float32(float32(clip) * _thc.inverse_root(size))
        turned = hadamard((sums[here].view(-1, size) * step - 1.0) * unit)
        decoded.append(turned.view(-1) * float32(float32(scale) * _thc.inverse_root(size)))
    out += flip(torch.cat(decoded), *seed)[: out.numel()]


def _check_tiles(op: str, n: int, named: int, a: int, b: int, down: int, across: int, pitch: int) -> None:
    sizes = min(a, b, down, across) >= 1 and a * b <= 65536 and pitch >= across * b
    require(sizes, f"{op}.a, b, down, across, pitch", "tiles of a matrix", (a, b, down, across, pitch))
    last = (down * a - 1) * pitch + across * b
    require(n >= last, f"{op}.out", f"at least {last} elements, up to the last of the tiles", n)
    tiles = down * across
    require(named % tiles == 0 and named > 0, f"{op}.values", f"as many for each of {tiles} tiles", named)


@declared(check=_check_tiles)
def waves_add_decoded(
    values: Annotated[Tensor, Rows(torch.float32, "named")],
    places: Annotated[Tensor, Rows(torch.int16, "named")],
    tall: Annotated[Tensor, Flat(torch.float32, "a * a")],
    wide: Annotated[Tensor, Flat(torch.float32, "b * b")],
    out: Written,
    a: int,
    b: int,
    down: int,
    across: int,
    pitch: int,
    scale: float,
) -> None:
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
