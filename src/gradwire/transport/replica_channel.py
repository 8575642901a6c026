"""Channel between replicas that come and go, on a process group that torch does not know.

Why:
    torch numbers the ranks of a job, and here each replica is a job of its own. So nothing is asked of the default
    group, neither a rank nor its store, and messages are sent with the methods of the group itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor

from gradwire.transport.channel import Channel
from gradwire.transport.failures import Loss, named

__all__ = ["ReplicaChannel"]


class ReplicaChannel(Channel):
    """The messages of a channel, without its sums: the members are numbered as in the group. Gloo alone."""

    group: dist.ProcessGroup

    def _place(self) -> tuple[list[int], int, bool]:
        return list(range(self.group.size())), self.group.rank(), False

    def called(self, call: str) -> AbstractContextManager[object]:
        """Say nothing, because there is no store to which all replicas belong."""
        return nullcontext()

    def _receive(self, tensor: Tensor, peer: int, tag: int) -> dist.Work | None:
        work: Any = cast(Any, self.group).recv([tensor], peer, tag)
        return cast("dist.Work | None", work)

    def _send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work | None:
        work: Any = cast(Any, self.group).send([tensor], peer, tag)
        return cast("dist.Work | None", work)

    def _explain(self, loss: Loss, error: RuntimeError) -> str:
        whom = named(loss.peers).replace("rank", "replica") or "another replica"
        told = f"waited in vain for {whom}" if loss.silent else f"lost {whom}"
        return f"replica {loss.rank} of {loss.world} {told} in {loss.doing} ({str(error).partition('. This is')[0]})"
