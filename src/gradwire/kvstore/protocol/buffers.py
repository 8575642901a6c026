"""Pool of reusable memory.

Invariants:
    Memory comes back to the pool when the last view of it is gone, whoever holds it: a tensor, a message that is still
    being sent, a push that is kept to be sent again.

Why:
    A fresh page costs a trap into the system on its first touch. Where memory is virtual twice over, writing 100 MB
    that were never written takes nine times as long as writing them again. So buffers as large as a key that are needed
    anew in every step are leased here.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from gradwire.vocabulary import align

__all__ = ["as_bytes", "lease", "lease_zeros"]

LEAST = 1 << 18
"""Bytes below which the allocator itself uses memory again."""

ALIGNED = 64

Block: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"


class Pool:
    """A pool of memory blocks, kept when unused: never more in all than were in use at one time.

    Example:
        >>> pool = Pool()
        >>> first = pool.lease(1 << 20)
        >>> address = first.data_ptr()
        >>> del first
        >>> pool.lease(1 << 20).data_ptr() == address
        True
    """

    def __init__(self) -> None:
        self._free: list[tuple[int, Block]] = []
        self._back: deque[tuple[int, Block]] = deque()
        self._used = self._peak = 0
        self._lock = threading.Lock()

    def lease(self, nbytes: int) -> Tensor:
        """Lease ``nbytes`` bytes of uninitialised memory; uint8, at a multiple of 64 bytes.

        Raises:
            MemoryError: there is not so much memory.
        """
        if nbytes < LEAST:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        # Sizes that differ a little from step to step share blocks.
        size = align(nbytes, max(LEAST, 1 << (nbytes.bit_length() - 4)))
        # Workers and servers of one process lease from one pool, each in its own thread.
        with self._lock:
            block = self._take(size)
        if block is None:
            block = self._fresh(size)
        start = -block.ctypes.data % ALIGNED
        # All views lead to this array, and not past it to the block: a memoryview stands between the two.
        root = np.frombuffer(block.data[start : start + size], np.uint8)
        # The callback takes no lock: any thread may drop the last view, even the collector in the middle of a lease.
        weakref.finalize(root, self._back.append, (size, block)).atexit = False
        return torch.from_numpy(root)[:nbytes]

    def _fresh(self, size: int) -> Block:
        try:
            return np.empty(size + ALIGNED, np.uint8)
        except MemoryError:
            with self._lock:
                # The memory was counted before it was asked for, and there is none.
                self._used -= size
            raise

    def _take(self, size: int) -> Block | None:
        while self._back:
            self._free.append(self._back.popleft())
            self._used -= self._free[-1][0]
        self._used += size
        self._peak = max(self._peak, self._used)
        at = next((i for i, (have, _) in enumerate(self._free) if have == size), None)
        block = None if at is None else self._free.pop(at)[1]
        while self._used + sum(have for have, _ in self._free) > self._peak:
            del self._free[0]
        return block


_POOL = Pool()


def lease(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Lease an uninitialised CPU tensor, whose memory is used again once no view of it is left.

    >>> lease((3, 2)).shape
    torch.Size([3, 2])
    """
    return _POOL.lease(math.prod(shape) * dtype.itemsize).view(dtype).view(tuple(shape))


def lease_zeros(shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Make a float32 tensor of zeros: leased on the CPU, allocated on any other device."""
    return (
        lease(shape).zero_()
        if torch.device(device).type == "cpu"
        else torch.zeros(tuple(shape), dtype=torch.float32, device=device)
    )


def as_bytes(tensor: Tensor) -> Tensor:
    """View the memory of a contiguous tensor as bytes."""
    flat = tensor.contiguous().view(-1)
    # A tensor of one element, or of none, is contiguous whatever its stride.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)
