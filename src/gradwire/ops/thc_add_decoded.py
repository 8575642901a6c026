"""Adds the mean of THC codes that were summed over ranks."""

import torch
from torch import Tensor

from gradwire.ops._checks import check_vector, float32
from gradwire.ops._thc import check_grid, flip, hadamard, inverse_root, parts
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["thc_add_decoded"]


def _check(
    norms: Tensor,
    seed: Tensor,
    codes: Tensor,
    out: Tensor,
    block: int,
    levels: int,
    clip: float,
    scale: float,  # noqa: ARG001
) -> None:
    check_vector("thc_add_decoded.out", out, torch.float32, out)
    check_grid("thc_add_decoded", out, norms, codes, seed, block, levels, clip)


@operation(
    "thc_add_decoded(Tensor norms, Tensor seed, Tensor codes, Tensor(a!) out, int block, int levels, float clip,"
    " float scale) -> ()",
    _check,
)
def thc_add_decoded(
    norms: Tensor, seed: Tensor, codes: Tensor, out: Tensor, block: int, levels: int, clip: float, scale: float
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
        levels: from 1 to 255, as encoded.
        clip: as encoded.
        scale: 1 to decode, -1 to subtract; rounded to float32.

    Raises:
        ConfigError: a tensor or a parameter is not of this form.

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
    for rows, size in parts(out, block):
        here = slice(rows.start * block, rows.start * block + (rows.stop - rows.start) * size)
        unit = norms[rows].unsqueeze(1) * float32(float32(clip) * inverse_root(size))
        turned = hadamard((sums[here].view(-1, size) * step - 1.0) * unit)
        decoded.append(turned.view(-1) * float32(float32(scale) * inverse_root(size)))
    out += flip(torch.cat(decoded), seed)[: out.numel()]


@thc_add_decoded.kernel("CPU")
def _cpu(
    norms: Tensor, seed: Tensor, codes: Tensor, out: Tensor, block: int, levels: int, clip: float, scale: float
) -> None:
    ranks = codes[-1:].data_ptr() if codes.numel() else 0
    addresses = norms.data_ptr(), seed.data_ptr(), codes.data_ptr(), ranks, out.data_ptr()
    kernels.thc_add_decoded(*addresses, block, levels, clip, scale, out.numel(), torch.get_num_threads())
