"""Signs in bits, the first element in the lowest bit of a byte, and sums over blocks of elements.

An element of zero counts as positive, whatever its sign bit; a NaN as negative. Sums are added in one order everywhere:
a block in 32 lanes, element by element, then the lanes as a tree.
"""

import torch
from torch import Tensor

from gradwire.errors import is_int, require
from gradwire.ops._checks import check_rows, check_vector
from gradwire.ops._qsgd import spread

__all__ = [
    "SUM_BLOCK",
    "add_levels",
    "block_sums",
    "check_block",
    "check_block_rows",
    "check_block_signs",
    "mean_magnitudes",
    "mean_of_sums",
    "pack_signs",
    "sign_bytes",
    "tree",
    "two_means",
    "unpack_signs",
    "without_levels",
]

SUM_BLOCK = 4096
"""Elements of one partial sum, where the whole tensor is summed."""

_LANES = 32


def sign_bytes(n: int) -> int:
    """How many bytes the signs of ``n`` elements take.

    >>> sign_bytes(8), sign_bytes(9)
    (1, 2)
    """
    return -(-n // 8)


def check_block(op: str, block: int) -> None:
    require(
        is_int(block, _LANES, 65536) and block % _LANES == 0, f"{op}.block", "a multiple of 32 from 32 to 65536", block
    )


def check_block_signs(op: str, x: Tensor, levels: tuple[str, Tensor, int], codes: Tensor, block: int) -> None:
    """Raise unless the fields of a payload fit ``x``: ``levels`` is a name, a tensor, and how many a block has."""
    name, values, each = levels
    check_block(op, block)
    check_vector(f"{op}.{name}", values, torch.float32, x, -(-x.numel() // block) * each)
    check_vector(f"{op}.codes", codes, torch.uint8, x, sign_bytes(x.numel()))


def check_block_rows(op: str, out: Tensor, levels: tuple[str, Tensor, int], codes: Tensor, block: int) -> None:
    """The same for the payloads of all ranks, one in each row."""
    name, values, each = levels
    check_block(op, block)
    check_vector(f"{op}.out", out, torch.float32, out)
    check_rows(f"{op}.{name}", values, torch.float32, out, -(-out.numel() // block) * each)
    check_rows(f"{op}.codes", codes, torch.uint8, out, sign_bytes(out.numel()))
    require(values.size(0) == codes.size(0), f"{op}.{name}", f"{codes.size(0)} rows, as codes", values.size(0))


def pack_signs(positive: Tensor, codes: Tensor) -> None:
    """Write a bool for each element; bits beyond the last are 0."""
    padded = torch.nn.functional.pad(positive.to(torch.uint8), (0, 8 * codes.numel() - positive.numel()))
    codes.copy_((padded.view(-1, 8) << _places(codes.device)).sum(dim=1, dtype=torch.uint8))


def unpack_signs(codes: Tensor, n: int) -> Tensor:
    """The first ``n`` signs, as bool."""
    return (codes.unsqueeze(1) >> _places(codes.device)).bitwise_and_(1).view(-1)[:n].bool()


def block_sums(x: Tensor, block: int) -> Tensor:
    """The sum of each block of ``x``; the last one may be short."""
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block // _LANES, _LANES)
    lanes = x.new_zeros(blocks.size(0), _LANES)
    for part in blocks.unbind(1):
        lanes += part
    return tree(lanes)


def tree(values: Tensor) -> Tensor:
    """The sum of each row, a power of two long: neighbours at half the distance, then at half of that."""
    while values.size(1) > 1:
        half = values.size(1) // 2
        values = values[:, :half] + values[:, half:]
    return values.squeeze(1)


def mean_magnitudes(x: Tensor, block: int) -> Tensor:
    """The mean of |x| in each block."""
    return block_sums(x.abs(), block).div_(_counts(x.numel(), block, x.device))


def two_means(x: Tensor, block: int) -> Tensor:
    """For each block the mean of what is below zero, then of the rest; 0 where there is none."""
    positive = x >= 0
    above = block_sums(positive.float(), block)
    sides = (x.masked_fill(positive, 0.0), _counts(x.numel(), block, x.device) - above), (x.where(positive, 0.0), above)
    means = [block_sums(side, block).div_(count).masked_fill_(count == 0, 0.0) for side, count in sides]
    return torch.stack(means, dim=1).view(-1)


def mean_of_sums(sums: Tensor, n: int) -> Tensor:
    """The sum of ``sums`` as a tree, divided by ``n``."""
    size = 1 << max(0, sums.numel() - 1).bit_length()
    padded = torch.nn.functional.pad(sums, (0, size - sums.numel()))
    return tree(padded.unsqueeze(0)).div(torch.full((1,), float(max(n, 1)), device=sums.device))


def without_levels(x: Tensor, low: Tensor, high: Tensor, block: int) -> Tensor:
    """``x`` less the level of its sign in its block."""
    return x - torch.where(x >= 0, spread(high, x.numel(), block), spread(low, x.numel(), block))


def add_levels(codes: Tensor, out: Tensor, low: Tensor, high: Tensor, block: int) -> None:
    """Add the level of each sign in its block."""
    n = out.numel()
    out += torch.where(unpack_signs(codes, n), spread(high, n, block), spread(low, n, block))


def _counts(n: int, block: int, device: torch.device) -> Tensor:
    counts = torch.full((-(-n // block),), float(block), device=device)
    counts[-1:] = float(n - (counts.numel() - 1) * block)
    return counts


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
