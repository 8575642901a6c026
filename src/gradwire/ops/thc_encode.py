"""THC codes of a tensor, on the grid of norms that all ranks share."""

import math

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._qsgd import uniform
from gradwire.ops._thc import check_grid, coordinates, flip, hadamard, parts
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["thc_encode"]


def _check(
    x: Tensor,
    norms: Tensor,
    seed: Tensor,
    codes: Tensor,
    block: int,
    levels: int,
    clip: float,
    key: int,  # noqa: ARG001
    step: int,  # noqa: ARG001
) -> None:
    check_vector("thc_encode.x", x, torch.float32, x)
    check_grid("thc_encode", x, norms, codes, seed, block, levels, clip)


@operation(
    "thc_encode(Tensor x, Tensor norms, Tensor seed, Tensor(a!) codes, int block, int levels, float clip, int key,"
    " int step) -> ()",
    _check,
)
def thc_encode(
    x: Tensor, norms: Tensor, seed: Tensor, codes: Tensor, block: int, levels: int, clip: float, key: int, step: int
) -> None:
    """Rotate each block and round its coordinates at random to ``levels`` + 1 points.

        y = H D x;  a = (y / (clip N) + 1) levels / 2, cut off at 0 and at levels;  code = floor(a + r)

    H, D as in ``ops._thc``; r = (u + 0.5) / 2**16 with u the 16 bits that ``philox`` gives coordinate i, as in
    ``qsgd_encode``.

    Args:
        x: float32, n elements; not changed.
        norms: float32, ceil(n / block): N, at least the length of the block. Where it is zero or not finite the codes
            are zero.
        seed: int64, (key, step) of the stream of signs; the same on all ranks. Empty if n = 0.
        codes: int32: a byte for each coordinate, four to a word, and then the number 1. Words of up to
            255 // levels ranks may be added.
        block: a power of two from 16 to 16384; the last one is padded to the next power of two, at least 16.
        levels: from 1 to 255; more mean less noise and fewer ranks.
        clip: in standard deviations of the coordinates.
        key: the stream of random numbers, a signed 64-bit integer; different on ranks.
        step: of the stream.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

    >>> codes = torch.empty(5, dtype=torch.int32)
    >>> thc_encode(torch.zeros(3), torch.ones(1), torch.tensor([1, 2]), codes, 16, levels=2, clip=2.0, key=1, step=0)
    >>> codes.view(torch.uint8)[:16].tolist() == [1] * 16, codes[-1].item()
    (True, 1)

    Source: M. Li, R. Ben Basat, S. Vargaftik, C. Lao, K. Xu, M. Mitzenmacher, M. Yu, "THC: Accelerating Distributed
    Deep Learning Using Tensor Homomorphic Compression", NSDI 2024.
    """
    if x.numel() == 0:
        return
    flipped = flip(torch.nn.functional.pad(x, (0, coordinates(x.numel(), block) - x.numel())), seed)
    shifts, written = uniform(flipped.numel(), key, step, x.device), []
    factor = float32(0.5 * levels / float32(clip))
    for rows, size in parts(x, block):
        here = slice(rows.start * block, rows.start * block + (rows.stop - rows.start) * size)
        usable = norms[rows].isfinite() & (norms[rows] > 0)
        factors = torch.full_like(norms[rows], factor).div_(norms[rows].masked_fill(~usable, math.inf))
        place = hadamard(flipped[here].view(-1, size)) * factors.unsqueeze(1) + 0.5 * levels
        shifted = place.clamp_(0.0, levels) + shifts[here].view(-1, size)
        codes_here = shifted.clamp_(max=levels).to(torch.uint8).masked_fill_(~usable.unsqueeze(1), 0)
        written.append(codes_here.view(-1))
    codes[:-1].view(torch.uint8).copy_(torch.cat(written))
    codes[-1:].fill_(1)


@thc_encode.kernel("CPU")
def _cpu(
    x: Tensor, norms: Tensor, seed: Tensor, codes: Tensor, block: int, levels: int, clip: float, key: int, step: int
) -> None:
    addresses = x.data_ptr(), norms.data_ptr(), seed.data_ptr(), codes.data_ptr()
    kernels.thc_encode(*addresses, block, levels, clip, key, step, x.numel(), torch.get_num_threads())
    codes[-1:].fill_(1)
