"""Sparse entries of several lengths and kinds, added part after part: each as the payload of one rank."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops._bits import unpack_bits

__all__ = ["parts_add_decoded"]

Parts = Sequence[Tensor]


def parts_add_decoded(values: Parts, indices: Parts, counts: Parts, levels: Parts, out: Tensor, scale: float) -> None:
    """As the operation; of two entries of a part for one element, which no encoder makes, only one may be added."""
    for value, index, count, level in zip(values, indices, counts, levels, strict=True):
        if level.numel():
            value = torch.where(unpack_bits(value, index.numel()), level[1], level[0])
        torch.ops.gradwire.sparse_add_decoded(value[None], index[None], count[None], out, scale)
