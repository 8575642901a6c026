"""The elements of largest magnitude of each of many tiles."""

import torch
from torch import Tensor

from gradwire.errors import require
from gradwire.ops._checks import check_vector
from gradwire.ops.base import operation
from gradwire.ops.native import kernels

__all__ = ["tile_topk"]

_MOST = 65536


def _check(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    check_vector("tile_topk.x", x, torch.float32, x)
    require(1 <= size <= _MOST and x.numel() % size == 0, "tile_topk.size", f"a part of x, at most {_MOST}", size)
    check_vector("tile_topk.values", values, torch.float32, x)
    tiles, k = x.numel() // size, values.numel()
    fits = k == 0 if tiles == 0 else k % tiles == 0 and tiles <= k <= x.numel()
    require(fits, "tile_topk.values", f"as many for each of {tiles} tiles, 1 to {size}", k)
    check_vector("tile_topk.places", places, torch.int16, x, k)


@operation("tile_topk(Tensor x, Tensor(a!) values, Tensor(b!) places, int size) -> ()", _check)
def tile_topk(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    """Write the k largest magnitudes of each tile and where they are: of equal ones those that come first.

    Magnitudes are compared by their bits without the sign, so a NaN is larger than infinity and is chosen first.

    Args:
        x: float32, tiles of ``size`` elements, one after the other; not changed.
        values: float32, k of each tile, in the order of their places.
        places: int16, as many: the 16 bits of the place in the tile.
        size: of a tile, 1 to 65536.

    Raises:
        ConfigError: a tensor is not of this form.

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


@tile_topk.kernel("CPU")
def _cpu(x: Tensor, values: Tensor, places: Tensor, size: int) -> None:
    tiles = x.numel() // size
    if tiles:
        addresses = x.data_ptr(), values.data_ptr(), places.data_ptr()
        kernels.tile_topk(*addresses, size, values.numel() // tiles, tiles, torch.get_num_threads())
