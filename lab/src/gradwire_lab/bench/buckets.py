"""Division of a model's gradients into buckets: one for all, or as DDP would divide them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradwire.engine.plan import Named

__all__ = ["BUCKET_BYTES", "bucket_indices", "cut"]

BUCKET_BYTES = 25 << 20
"""DDP's default for all buckets but the first, which is smaller so that communication begins early."""


def bucket_indices(shapes: Sequence[Sequence[int]], nbytes: int = BUCKET_BYTES) -> list[list[int]]:
    """The buckets that DDP makes of float32 parameters, as indices into ``shapes``.

    Args:
        shapes: shapes of the parameters, in the order in which their gradients come.
        nbytes: bytes of a bucket; the first one that is full is of 1 MiB, as DDP has it.

    Example:
        >>> bucket_indices([(1 << 18,), (1 << 20,), (1 << 20,), (10,)], nbytes=8 << 20)
        [[0], [1, 2], [3]]
    """
    tensors = [torch.empty(tuple(shape), device="meta") for shape in shapes]
    c10d: Any = dist
    limits = [min(c10d._DEFAULT_FIRST_BUCKET_BYTES, nbytes), nbytes]
    indices, _ = c10d._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    return [list(each) for each in indices]


def cut(params: Sequence[Named], megabytes: float | None) -> list[list[Named]]:
    """The parameters of each bucket, in the order in which a backward pass completes them.

    Args:
        params: names and shapes, in the order of the network.
        megabytes: size of a bucket in units of 2^20 bytes, as DDP's ``bucket_cap_mb``; None: one bucket of all.

    Example:
        >>> cut([("first", (4, 4)), ("last", (4,))], None)
        [[('last', (4,)), ('first', (4, 4))]]
    """
    order = list(reversed(params))
    if megabytes is None:
        return [order]
    return [[order[i] for i in each] for each in bucket_indices([shape for _, shape in order], int(megabytes * 2**20))]
