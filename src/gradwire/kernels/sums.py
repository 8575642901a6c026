"""Sums over blocks of elements, in one order everywhere: in lanes, element by element, then the lanes as a tree."""

import torch
from torch import Tensor

__all__ = ["SUM_BLOCK", "block_sums", "lane_sums", "mean_of_sums", "sum_of_sums", "tree_of"]

SUM_BLOCK = 4096
"""Elements of one partial sum, where the whole tensor is summed."""


def lane_sums(blocks: Tensor, lanes: int = 16) -> Tensor:
    """Compute the sum of each row, whose length is a multiple of ``lanes``."""
    total = blocks.new_zeros(blocks.size(0), lanes)
    for part in blocks.view(blocks.size(0), blocks.size(1) // lanes, lanes).unbind(1):
        total += part
    return tree_of(total)


def block_sums(x: Tensor, block: int) -> Tensor:
    """Compute the sum of each block of ``x``, in 32 lanes; the last one may be short."""
    return lane_sums(torch.nn.functional.pad(x, (0, -x.numel() % block)).view(-1, block), 32)


def mean_of_sums(sums: Tensor, n: int) -> Tensor:
    """Compute the sum of ``sums`` as a tree, divided by ``n``."""
    return sum_of_sums(sums).div(torch.full((1,), float(max(n, 1)), dtype=torch.float32, device=sums.device))


def sum_of_sums(sums: Tensor) -> Tensor:
    """Compute the sum of ``sums`` as a tree, in their own type; one element."""
    size = 1 << max(0, sums.numel() - 1).bit_length()
    return tree_of(torch.nn.functional.pad(sums, (0, size - sums.numel())).unsqueeze(0))


def tree_of(values: Tensor) -> Tensor:
    """Compute the sum of each row, a power of two long: halves are added to each other until one element is left."""
    while values.size(-1) > 1:
        half = values.size(-1) // 2
        values = values[..., :half] + values[..., half:]
    return values.squeeze(-1)
