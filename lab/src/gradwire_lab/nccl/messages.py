"""The plain collectives of torch between ranks of one GPU: do they go at all, are they right, how long do they take?"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire_lab.nccl.rows_file import Row

__all__ = ["OPERATIONS", "SIZES", "TINY", "case_of", "message"]

SIZES = (1 << 10, 16 << 20)
"""Bytes of a rank's tensor."""

TINY = (1 << 10, 1 << 16)
"""The same in a rehearsal."""

REPEATS = 5
WARM_UP = 2


def _all_reduce(mine: Tensor, _rank: int, world: int) -> tuple[Tensor, Tensor]:
    out = mine.clone()
    dist.all_reduce(out)
    return out, torch.full_like(mine, float(sum(range(1, world + 1))))


def _all_gather(mine: Tensor, _rank: int, world: int) -> tuple[Tensor, Tensor]:
    out = mine.new_empty(world * mine.numel())
    dist.all_gather_into_tensor(out, mine)
    return out, torch.arange(1.0, world + 1, device=mine.device).repeat_interleave(mine.numel())


def _reduce_scatter(mine: Tensor, _rank: int, world: int) -> tuple[Tensor, Tensor]:
    out = mine.new_empty(mine.numel() // world)
    dist.reduce_scatter_tensor(out, mine)
    return out, torch.full_like(out, float(sum(range(1, world + 1))))


def _all_to_all(mine: Tensor, _rank: int, world: int) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(mine)
    dist.all_to_all_single(out, mine)
    return out, torch.arange(1.0, world + 1, device=mine.device).repeat_interleave(mine.numel() // world)


def _send_and_receive(mine: Tensor, rank: int, world: int) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(mine)
    before = (rank - 1) % world
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, out, before), dist.P2POp(dist.isend, mine, (rank + 1) % world)]
    )
    for work in works:
        work.wait()
    return out, torch.full_like(mine, float(before + 1))


OPERATIONS: dict[str, Callable[[Tensor, int, int], tuple[Tensor, Tensor]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send and receive": _send_and_receive,
}
"""Each returns what it received and what it should have."""


def case_of(operation: str, nbytes: int) -> str:
    """The name of a row.

    >>> case_of("all_reduce", 1024)
    'all_reduce of 1024 bytes'
    """
    return f"{operation} of {nbytes} bytes"


def message(rank: int, device: str, case: str) -> Row:
    """Make one collective several times: a job for ``find_rows``."""
    operation, _, size = case.partition(" of ")
    nbytes, world = int(size.split()[0]), dist.get_world_size()
    mine = torch.full((nbytes // 4,), float(rank + 1), device=device)
    run, times = OPERATIONS[operation], list[float]()
    for _ in range(WARM_UP + REPEATS):
        begun = time.perf_counter()
        out, wanted = run(mine, rank, world)
        # A copy to the CPU waits for the device.
        right = bool(torch.equal(out, wanted))
        times.append(time.perf_counter() - begun)
    told: list[Any] = [None] * world
    dist.all_gather_object(told, right)
    wrong = [number for number, each in enumerate(told) if not each]
    seconds = median(times[WARM_UP:])
    return {"bytes": nbytes, "seconds": seconds, "difference": f"wrong on ranks {wrong}" if wrong else None}
