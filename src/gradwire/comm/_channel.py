"""The only caller of ``torch.distributed`` collectives.

Laws, each found by measuring Gloo:
    everything crosses as bytes or as a float the collective can sum; sizes agree on all ranks by construction;
    receives are posted before sends, or a full-duplex link runs at half its rate;
    ``reduce_scatter`` is never called: it is an all-reduce inside and moves twice the bytes;
    one thread issues all calls of one channel, on a process group that nobody else uses.
On NCCL ``wait`` orders streams and does not block the CPU; on Gloo it blocks the thread, until the group's timeout.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor

from gradwire.errors import ConfigError, GroupError
from gradwire.metrics import Metrics

__all__ = ["Channel", "Traffic", "traffic_of"]


@dataclass
class Traffic:
    """How many collectives were begun on a group, and how many ended well."""

    begun: int = 0
    ended: int = 0


_traffic: weakref.WeakKeyDictionary[dist.ProcessGroup, Traffic] = weakref.WeakKeyDictionary()


def traffic_of(group: dist.ProcessGroup | None) -> Traffic:
    """The one count that all channels on a group share."""
    return Traffic() if group is None else _traffic.setdefault(group, Traffic())


class Channel:
    """Collectives on one process group, with the bytes counted; they block unless their name says ``begin``.

    Args:
        group: used by this channel alone; None stands for a group of one, which needs no process group at all.
        metrics: receives the byte counts and the time spent.
    """

    def __init__(self, group: dist.ProcessGroup | None, metrics: Metrics) -> None:
        self.group, self.metrics = group, metrics
        self.rank = dist.get_rank(group) if group is not None else 0
        self.world = dist.get_world_size(group) if group is not None else 1
        self.is_nccl = group is not None and dist.get_backend(group) == "nccl"
        self._global = dist.get_process_group_ranks(group) if group is not None else [0]
        self.traffic, self._closed = traffic_of(group), False
        self.release: Callable[[], object] = lambda: None

    def close(self) -> None:
        """Hand the group back to whoever lent it; another exchange may use it from now on, and this one must not."""
        self._closed = True
        self.release()

    def all_reduce(self, tensor: Tensor, how: str = "sum") -> None:
        """Reduce ``tensor`` over the ranks, in place. Traffic of a ring: 2 (W-1)/W of its bytes, whatever W is."""
        self.begin_all_reduce(tensor, how)()

    def begin_all_reduce(self, tensor: Tensor, how: str = "sum") -> Callable[[], None]:
        """Start an all-reduce; the result is there when the returned function has been called."""
        if self.world == 1 or tensor.numel() == 0:
            return lambda: None
        self._begin()
        moved = 2 * (self.world - 1) * tensor.nbytes // self.world
        self._count(moved, moved)
        with self.metrics.timed("communicate"):
            op = dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM
            work = dist.all_reduce(tensor, op=op, group=self.group, async_op=True)
        return partial(self._finish, [work])

    def all_gather(self, rows: Tensor) -> None:
        """Row ``rank`` of ``rows`` goes to every rank. Traffic: (W-1) rows; it grows with the number of workers."""
        own = rows[self.rank]
        self.exchange([own] * self.world, list(rows.unbind(0)))

    def exchange(self, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> None:
        """``sends[j]`` goes to rank j, ``receives[j]`` comes from rank j; a rank's own entries are its business."""
        peers = [j for j in range(self.world) if j != self.rank]
        if not peers:
            return
        self._begin()
        with self.metrics.timed("communicate"):
            works = self._post(sends, receives, peers)
        self._finish(works)
        self._count(sum(sends[j].nbytes for j in peers), sum(receives[j].nbytes for j in peers))

    def broadcast(self, rows: Tensor) -> None:
        """The same result as ``all_gather``, by one broadcast from each rank."""
        if self.world == 1 or rows.numel() == 0:
            return
        self._begin()
        with self.metrics.timed("communicate"):
            works = [
                dist.broadcast(rows[j], self._global[j], group=self.group, async_op=True) for j in range(self.world)
            ]
        self._finish(works)
        moved = (self.world - 1) * rows[0].nbytes
        self._count(moved, moved)

    def _post(self, sends: Sequence[Tensor], receives: Sequence[Tensor], peers: Sequence[int]) -> list[dist.Work]:
        incoming = [(j, receives[j]) for j in peers if receives[j].numel()]
        outgoing = [(j, sends[j]) for j in peers if sends[j].numel()]
        if self.is_nccl:
            ops = [dist.P2POp(dist.irecv, tensor, self._global[j], self.group) for j, tensor in incoming]
            ops += [dist.P2POp(dist.isend, tensor, self._global[j], self.group) for j, tensor in outgoing]
            return dist.batch_isend_irecv(ops) if ops else []
        works = [dist.irecv(tensor, self._global[j], group=self.group) for j, tensor in incoming]
        works += [dist.isend(tensor, self._global[j], group=self.group) for j, tensor in outgoing]
        return [work for work in works if work is not None]

    def _finish(self, works: Sequence[dist.Work | None]) -> None:
        try:
            with self.metrics.timed("communicate"):
                for work in works:
                    if work is not None:
                        work.wait()
        except RuntimeError as error:
            raise GroupError(f"rank {self.rank} of {self.world} lost a peer or met the deadline: {error}") from error
        self.traffic.ended += 1

    def _begin(self) -> None:
        if self._closed:
            raise ConfigError("state must be open to exchange anything, got one after close(): make a new one")
        self.traffic.begun += 1

    def _count(self, sent: int, received: int) -> None:
        self.metrics.bytes_sent += sent
        self.metrics.bytes_received += received
